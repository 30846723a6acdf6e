#include "kernels/nn/rope.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "kernels/check.h"

namespace nsa {
namespace {

absl::Status CheckNormalize(const Exec& exec, const RopeArgs& args, int64_t size) {
  const int32_t width = args.head_dim;
  const bool power_of_two = width >= 8 && width <= 128 && (width & (width - 1)) == 0;
  if (exec.backend == Backend::kCuda && !power_of_two && width != 192) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "rope: head_dim=%d (normalized on a GPU: 8, 16, 32, 64, 128 or 192); take 64", width));
  }
  const int64_t heads = size / width;
  if (!args.inverse) return CheckOptional("rstd", args.rstd, heads, DType::kF32, "B·S·heads");
  if (!args.weight.wanted()) {  // else CheckWeight()
    NSA_RETURN_IF_ERROR(
        CheckTensor("y_forward", args.y_forward, size, args.x.dtype, "B·S·heads·dk"));
  }
  return CheckTensor("rstd_forward", args.rstd_forward, heads, DType::kF32, "B·S·heads");
}

absl::Status CheckWeight(const Exec& exec, const RopeArgs& args, int64_t size) {
  if (exec.backend == Backend::kCuda || !args.normalize) {
    return absl::InvalidArgumentError(
        "rope: weight: given (with normalize, on the CPU only); use SplitProjections");
  }
  NSA_RETURN_IF_ERROR(CheckTensor("weight", args.weight, args.head_dim, DType::kF32, "dk"));
  if (!args.inverse) return CheckOptional("unit", args.unit, size, DType::kF32, "B·S·heads·dk");
  NSA_RETURN_IF_ERROR(
      CheckTensor("unit_forward", args.unit_forward, size, DType::kF32, "B·S·heads·dk"));
  return CheckTensor("dweight", args.dweight, args.head_dim, DType::kF32, "dk");
}

absl::Status Check(const Exec& exec, const RopeArgs& args) {
  if (args.batch < 1 || args.seq_len < 1 || args.heads < 1 || args.head_dim < 2 ||
      args.head_dim % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "rope: B=%d S=%d heads=%d head_dim=%d (all positive, head_dim even); correct the shape",
        args.batch, args.seq_len, args.heads, args.head_dim));
  }
  if (!(args.base > 1) || !std::isfinite(args.base)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("rope_base: %g (more than 1); take 10000", args.base));
  }
  if (!(args.scale > 0)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("rope_scale: %g (more than 0); take 1", args.scale));
  }
  NSA_RETURN_IF_ERROR(Validate(args.scaling));
  const int64_t size = int64_t{1} * args.batch * args.seq_len * args.heads * args.head_dim;
  NSA_RETURN_IF_ERROR(CheckFloating("x", args.x));
  NSA_RETURN_IF_ERROR(CheckTensor("x", args.x, size, args.x.dtype, "B·S·heads·dk"));
  NSA_RETURN_IF_ERROR(CheckTensor("y", args.y, size, args.x.dtype, "B·S·heads·dk"));
  if (args.normalize) NSA_RETURN_IF_ERROR(CheckNormalize(exec, args, size));
  if (args.weight.wanted()) NSA_RETURN_IF_ERROR(CheckWeight(exec, args, size));
  return CheckBackend(exec, "rope", args.x.dtype);
}

// Cosine and sine of each pair at one position.
struct Angles {
  std::vector<float> cos, sin;
};

void SetAngles(const RopeArgs& args, const std::vector<double>& frequency, int32_t t,
               Angles* angles) {
  const double position = t / static_cast<double>(args.scale);
  for (size_t i = 0; i < frequency.size(); ++i) {
    const double theta = position * frequency[i];
    angles->cos[i] = static_cast<float>(std::cos(theta));
    angles->sin[i] = static_cast<float>(args.inverse ? -std::sin(theta) : std::sin(theta));
  }
}

void RotateRow(const Angles& angles, int32_t pairs, const float* x, float* y) {
  for (int32_t i = 0; i < pairs; ++i) {
    const float x0 = x[2 * i];
    const float x1 = x[2 * i + 1];
    y[2 * i] = x0 * angles.cos[i] - x1 * angles.sin[i];
    y[2 * i + 1] = x0 * angles.sin[i] + x1 * angles.cos[i];
  }
}

float* RowOf(const Tensor& heads, const RopeArgs& args, int64_t row) {
  return heads.as<float>().data() + row * args.head_dim;
}
const float* RowOf(const ConstTensor& heads, const RopeArgs& args, int64_t row) {
  return heads.as<float>().data() + row * args.head_dim;
}

// The columns of a head times their weights.
void Multiply(const RopeArgs& args, float* head) {
  const float* const weight = args.weight.as<float>().data();
  for (int32_t i = 0; i < args.head_dim; ++i) head[i] *= weight[i];
}

// The rows of a normalized head; y may be x.
void NormalizeRow(const RopeArgs& args, const Angles& angles, int64_t row, const float* x,
                  float* y) {
  float squares = 0;
  for (int32_t i = 0; i < args.head_dim; ++i) squares += x[i] * x[i];
  const float r = 1.0f / std::sqrt(squares / static_cast<float>(args.head_dim) + args.eps);
  for (int32_t i = 0; i < args.head_dim; ++i) y[i] = x[i] * r;
  if (args.unit.wanted()) std::copy_n(y, args.head_dim, RowOf(args.unit, args, row));
  if (args.weight.wanted()) Multiply(args, y);
  RotateRow(angles, args.head_dim / 2, y, y);
  if (args.rstd.wanted()) args.rstd.as<float>()[row] = r;
}

void NormalizeRowBackward(const RopeArgs& args, const Angles& angles, int64_t row, const float* dy,
                          float* dx) {
  const float* y = static_cast<const float*>(args.y_forward.data) + row * args.head_dim;
  float dot = 0;
  for (int32_t i = 0; i < args.head_dim; ++i) dot += dy[i] * y[i];
  const float along = dot / static_cast<float>(args.head_dim);
  const float r = args.rstd_forward.as<float>()[row];
  for (int32_t i = 0; i < args.head_dim; ++i) dx[i] = r * (dy[i] - y[i] * along);
  RotateRow(angles, args.head_dim / 2, dx, dx);
}

// The same where the head was multiplied by weights; dx may be dy.
void WeightedRowBackward(const RopeArgs& args, const Angles& angles, int64_t row, const float* dy,
                         float* dx) {
  RotateRow(angles, args.head_dim / 2, dy, dx);
  Multiply(args, dx);
  const float* const unit = RowOf(args.unit_forward, args, row);
  float dot = 0;
  for (int32_t i = 0; i < args.head_dim; ++i) dot += dx[i] * unit[i];
  const float along = dot / static_cast<float>(args.head_dim);
  const float r = args.rstd_forward.as<float>()[row];
  for (int32_t i = 0; i < args.head_dim; ++i) dx[i] = r * (dx[i] - unit[i] * along);
}

// dweight of one pair of columns: the gradients rotated back times the normalized columns, over all
// heads in order.
void WeightGradientOfPair(const RopeArgs& args, double frequency, int32_t pair) {
  double sum[2] = {};
  Angles angle{std::vector<float>(1), std::vector<float>(1)};
  for (int32_t t = 0; t < args.seq_len; ++t) {
    SetAngles(args, {frequency}, args.first + t, &angle);
    for (int64_t b = 0; b < args.batch; ++b) {
      const int64_t first = (b * args.seq_len + t) * args.heads;
      for (int64_t row = first; row < first + args.heads; ++row) {
        float dz[2];
        RotateRow(angle, 1, RowOf(args.x, args, row) + 2 * pair, dz);
        const float* const unit = RowOf(args.unit_forward, args, row) + 2 * pair;
        sum[0] += double{dz[0]} * unit[0];
        sum[1] += double{dz[1]} * unit[1];
      }
    }
  }
  float* const dweight = args.dweight.as<float>().data() + 2 * pair;
  dweight[0] += static_cast<float>(sum[0]);
  dweight[1] += static_cast<float>(sum[1]);
}

// One row of a head, in the way that the arguments ask for.
void TurnRow(const RopeArgs& args, const Angles& angles, int64_t row, const float* x, float* y) {
  if (!args.normalize) {
    RotateRow(angles, args.head_dim / 2, x, y);
  } else if (!args.inverse) {
    NormalizeRow(args, angles, row, x, y);
  } else if (args.weight.wanted()) {
    WeightedRowBackward(args, angles, row, x, y);
  } else {
    NormalizeRowBackward(args, angles, row, x, y);
  }
}

void RopeCpu(const RopeArgs& args) {
  const int32_t pairs = args.head_dim / 2;
  std::vector<double> frequency(pairs);
  for (int32_t i = 0; i < pairs; ++i) {
    frequency[i] = RopeFrequency(args.base, i, args.head_dim, args.scaling);
  }
  const auto* x = static_cast<const float*>(args.x.data);
  auto* y = static_cast<float*>(args.y.data);
  const int64_t row = int64_t{1} * args.heads * args.head_dim;
  if (args.weight.wanted() && args.inverse) {  // before y takes the place of x
#pragma omp parallel for schedule(static)
    for (int32_t i = 0; i < pairs; ++i) WeightGradientOfPair(args, frequency[i], i);
  }
#pragma omp parallel
  {
    Angles angles{std::vector<float>(pairs), std::vector<float>(pairs)};
#pragma omp for schedule(static)
    for (int32_t t = 0; t < args.seq_len; ++t) {
      SetAngles(args, frequency, args.first + t, &angles);
      for (int64_t b = 0; b < args.batch; ++b) {
        const int64_t at = (b * args.seq_len + t) * row;
        for (int64_t a = at; a < at + row; a += args.head_dim) {
          TurnRow(args, angles, a / args.head_dim, x + a, y + a);
        }
      }
    }
  }
}

}  // namespace

absl::Status Rope(const Exec& exec, const RopeArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, args));
  exec.Enter("rope");
  if (exec.backend == Backend::kCuda) return cuda::Rope(exec, args);
  RopeCpu(args);
  return absl::OkStatus();
}

}  // namespace nsa
