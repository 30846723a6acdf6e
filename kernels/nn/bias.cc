#include "kernels/nn/bias.h"

#include <algorithm>

#include "common/base/status.h"
#include "kernels/check.h"

namespace nsa {
namespace {

// Columns per task: two cache lines.
constexpr int64_t kColumns = 32;

absl::Status CheckShape(int64_t rows, int64_t width) {
  NSA_RETURN_IF_ERROR(CheckAtLeast("rows", rows, 0));
  return CheckAtLeast("width", width, 1);
}

// Adds columns [begin, end) of all rows to their gradient, in row order.
void SumColumns(const BiasGradientArgs& args, int64_t begin, int64_t end) {
  float sum[kColumns] = {};
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* const dy = args.dy.as<float>().data() + row * args.width + begin;
    for (int64_t i = 0; i < end - begin; ++i) sum[i] += dy[i];
  }
  float* const dbias = args.dbias.as<float>().data() + begin;
  for (int64_t i = 0; i < end - begin; ++i) dbias[i] += sum[i];
}

}  // namespace

absl::Status AddBias(const Exec& exec, const AddBiasArgs& args) {
  const DType type = ActivationType(exec);
  NSA_RETURN_IF_ERROR(CheckShape(args.rows, args.width));
  NSA_RETURN_IF_ERROR(CheckTensor("bias", args.bias, args.width, type, "width"));
  NSA_RETURN_IF_ERROR(CheckTensor("y", args.y, args.rows * args.width, type, "rows·width"));
  exec.Enter("add_bias");
  if (exec.backend == Backend::kCuda) return cuda::AddBias(exec, args);
  const float* const bias = args.bias.as<float>().data();
  float* const y = args.y.as<float>().data();
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t i = 0; i < args.width; ++i) y[row * args.width + i] += bias[i];
  }
  return absl::OkStatus();
}

absl::Status BiasGradient(const Exec& exec, const BiasGradientArgs& args) {
  const DType type = ActivationType(exec);
  NSA_RETURN_IF_ERROR(CheckShape(args.rows, args.width));
  NSA_RETURN_IF_ERROR(CheckTensor("dy", args.dy, args.rows * args.width, type, "rows·width"));
  NSA_RETURN_IF_ERROR(CheckTensor("dbias", args.dbias, args.width, DType::kF32, "width"));
  exec.Enter("bias_gradient");
  if (exec.backend == Backend::kCuda) return cuda::BiasGradient(exec, args);
#pragma omp parallel for schedule(static)
  for (int64_t begin = 0; begin < args.width; begin += kColumns) {
    SumColumns(args, begin, std::min(begin + kColumns, args.width));
  }
  return absl::OkStatus();
}

}  // namespace nsa
