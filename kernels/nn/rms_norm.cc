#include "kernels/nn/rms_norm.h"

#include <algorithm>
#include <cmath>

#include "common/base/status.h"
#include "kernels/check.h"

namespace nsa {
namespace {

// Columns per task for the gradient of the weight: two cache lines.
constexpr int64_t kColumns = 32;

absl::Status Check(const Exec& exec, const RmsNormArgs& args) {
  const DType type = ActivationType(exec);
  NSA_RETURN_IF_ERROR(CheckAtLeast("rows", args.rows, 0));
  NSA_RETURN_IF_ERROR(CheckAtLeast("dim", args.dim, 1));
  NSA_RETURN_IF_ERROR(CheckTensor("x", args.x, args.rows * args.dim, type, "rows·dim"));
  NSA_RETURN_IF_ERROR(CheckTensor("weight", args.weight, args.dim, type, "dim"));
  NSA_RETURN_IF_ERROR(CheckTensor("y", args.y, args.rows * args.dim, type, "rows·dim"));
  if (!args.rstd.wanted()) return absl::OkStatus();
  return CheckTensor("rstd", args.rstd, args.rows, DType::kF32, "rows");
}

absl::Status Check(const Exec& exec, const RmsNormBackwardArgs& args) {
  const DType type = ActivationType(exec);
  NSA_RETURN_IF_ERROR(CheckAtLeast("rows", args.rows, 0));
  NSA_RETURN_IF_ERROR(CheckAtLeast("dim", args.dim, 1));
  NSA_RETURN_IF_ERROR(CheckTensor("dy", args.dy, args.rows * args.dim, type, "rows·dim"));
  NSA_RETURN_IF_ERROR(CheckTensor("x", args.x, args.rows * args.dim, type, "rows·dim"));
  NSA_RETURN_IF_ERROR(CheckTensor("weight", args.weight, args.dim, type, "dim"));
  NSA_RETURN_IF_ERROR(CheckTensor("rstd", args.rstd, args.rows, DType::kF32, "rows"));
  NSA_RETURN_IF_ERROR(CheckTensor("dx", args.dx, args.rows * args.dim, type, "rows·dim"));
  NSA_RETURN_IF_ERROR(CheckOptional("y", args.y, args.rows * args.dim, type, "rows·dim"));
  return CheckTensor("dweight", args.dweight, args.dim, DType::kF32, "dim");
}

void ScaleRow(int64_t dim, const float* x, const float* weight, float rstd, float* y) {
  for (int64_t i = 0; i < dim; ++i) y[i] = x[i] * rstd * weight[i];
}

void InputGradientRow(int64_t dim, const float* dy, const float* x, const float* weight, float rstd,
                      float* dx) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < dim; ++i) dot += dy[i] * weight[i] * x[i];
  const float along_x = rstd * rstd * dot / static_cast<float>(dim);
  for (int64_t i = 0; i < dim; ++i) dx[i] += rstd * (dy[i] * weight[i] - x[i] * along_x);
}

// Computes columns [begin, end) of dweight over all rows, in row order.
void WeightGradientColumns(const RmsNormBackwardArgs& args, int64_t begin, int64_t end) {
  const auto dy = args.dy.as<float>();
  const auto x = args.x.as<float>();
  const auto rstd = args.rstd.as<float>();
  float sum[kColumns] = {};
  for (int64_t r = 0; r < args.rows; ++r) {
    const float* dy_row = dy.data() + r * args.dim + begin;
    const float* x_row = x.data() + r * args.dim + begin;
    for (int64_t i = 0; i < end - begin; ++i) sum[i] += dy_row[i] * x_row[i] * rstd[r];
  }
  float* dweight = args.dweight.as<float>().data() + begin;
  for (int64_t i = 0; i < end - begin; ++i) dweight[i] += sum[i];
}

}  // namespace

absl::Status RmsNorm(const Exec& exec, const RmsNormArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, args));
  exec.Enter("rms_norm");
  if (exec.backend == Backend::kCuda) return cuda::RmsNorm(exec, args);
  const float* weight = args.weight.as<float>().data();
#pragma omp parallel for schedule(static)
  for (int64_t r = 0; r < args.rows; ++r) {
    const float* x = args.x.as<float>().data() + r * args.dim;
    float* y = args.y.as<float>().data() + r * args.dim;
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < args.dim; ++i) squares += x[i] * x[i];
    const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(args.dim) + args.eps);
    ScaleRow(args.dim, x, weight, rstd, y);
    if (args.rstd.wanted()) args.rstd.as<float>()[r] = rstd;
  }
  return absl::OkStatus();
}

absl::Status RmsNormBackward(const Exec& exec, const RmsNormBackwardArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, args));
  exec.Enter("rms_norm_backward");
  if (exec.backend == Backend::kCuda) return cuda::RmsNormBackward(exec, args);
#pragma omp parallel
  {
#pragma omp for schedule(static) nowait
    for (int64_t r = 0; r < args.rows; ++r) {
      const int64_t at = r * args.dim;
      const float* x = args.x.as<float>().data() + at;
      const float* weight = args.weight.as<float>().data();
      const float rstd = args.rstd.as<float>()[r];
      InputGradientRow(args.dim, args.dy.as<float>().data() + at, x, weight, rstd,
                       args.dx.as<float>().data() + at);
      if (args.y.wanted()) {
        ScaleRow(args.dim, x, weight, rstd, args.y.as<float>().data() + at);
      }
    }
#pragma omp for schedule(static)
    for (int64_t begin = 0; begin < args.dim; begin += kColumns) {
      WeightGradientColumns(args, begin, std::min(begin + kColumns, args.dim));
    }
  }
  return absl::OkStatus();
}

}  // namespace nsa
