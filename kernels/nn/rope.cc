#include "kernels/nn/rope.h"

#include <cmath>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "kernels/check.h"

namespace nsa {
namespace {

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
  if (!(args.scale > 0) || !std::isfinite(args.scale)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("rope_scale: %g (more than 0); take 1", args.scale));
  }
  const int64_t size = int64_t{1} * args.batch * args.seq_len * args.heads * args.head_dim;
  NSA_RETURN_IF_ERROR(CheckFloating("x", args.x));
  NSA_RETURN_IF_ERROR(CheckTensor("x", args.x, size, args.x.dtype, "B·S·heads·dk"));
  NSA_RETURN_IF_ERROR(CheckTensor("y", args.y, size, args.x.dtype, "B·S·heads·dk"));
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

void RopeCpu(const RopeArgs& args) {
  const int32_t pairs = args.head_dim / 2;
  std::vector<double> frequency(pairs);
  for (int32_t i = 0; i < pairs; ++i) {
    frequency[i] = std::pow(static_cast<double>(args.base), -2.0 * i / args.head_dim);
  }
  const auto* x = static_cast<const float*>(args.x.data);
  auto* y = static_cast<float*>(args.y.data);
  const int64_t row = int64_t{1} * args.heads * args.head_dim;
#pragma omp parallel
  {
    Angles angles{std::vector<float>(pairs), std::vector<float>(pairs)};
#pragma omp for schedule(static)
    for (int32_t t = 0; t < args.seq_len; ++t) {
      SetAngles(args, frequency, args.first + t, &angles);
      for (int64_t b = 0; b < args.batch; ++b) {
        const int64_t at = (b * args.seq_len + t) * row;
        for (int64_t a = at; a < at + row; a += args.head_dim) {
          RotateRow(angles, pairs, x + a, y + a);
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
