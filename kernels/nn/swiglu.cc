#include "kernels/nn/swiglu.h"

#include "common/base/status.h"
#include "kernels/check.h"
#include "kernels/vector_exp.h"

namespace nsa {
namespace {

inline float Sigmoid(float x) { return 1.0f / (1.0f + VectorExp(-x)); }

void ForwardRow(int64_t width, const float* x, float* y) {
  const float* const up = x + width;
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) y[i] = x[i] * Sigmoid(x[i]) * up[i];
}

// Reads all of column i before it writes any: dx may be x, and y may be dy. `y` may be null.
void BackwardRow(int64_t width, const float* dy, const float* x, float* dx, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    const float gate = x[i], up = x[width + i], d = dy[i], s = Sigmoid(gate);
    dx[i] = d * up * s * (1.0f + gate * (1.0f - s));
    dx[width + i] = d * (gate * s);
    if (y != nullptr) y[i] = gate * s * up;
  }
}

absl::Status CheckShape(int64_t rows, int64_t width) {
  NSA_RETURN_IF_ERROR(CheckAtLeast("rows", rows, 0));
  return CheckAtLeast("width", width, 1);
}

}  // namespace

absl::Status Swiglu(const Exec& exec, const SwigluArgs& args) {
  const DType type = ActivationType(exec);
  const int64_t rows = args.rows, width = args.width;
  NSA_RETURN_IF_ERROR(CheckShape(rows, width));
  NSA_RETURN_IF_ERROR(CheckTensor("x", args.x, 2 * rows * width, type, "rows·2·width"));
  NSA_RETURN_IF_ERROR(CheckTensor("y", args.y, rows * width, type, "rows·width"));
  exec.Enter("swiglu");
  if (exec.backend == Backend::kCuda) return cuda::Swiglu(exec, args);
  const float* const x = args.x.as<float>().data();
  float* const y = args.y.as<float>().data();
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    ForwardRow(width, x + 2 * row * width, y + row * width);
  }
  return absl::OkStatus();
}

absl::Status SwigluBackward(const Exec& exec, const SwigluBackwardArgs& args) {
  const DType type = ActivationType(exec);
  const int64_t rows = args.rows, width = args.width;
  NSA_RETURN_IF_ERROR(CheckShape(rows, width));
  NSA_RETURN_IF_ERROR(CheckTensor("dy", args.dy, rows * width, type, "rows·width"));
  NSA_RETURN_IF_ERROR(CheckTensor("x", args.x, 2 * rows * width, type, "rows·2·width"));
  NSA_RETURN_IF_ERROR(CheckTensor("dx", args.dx, 2 * rows * width, type, "rows·2·width"));
  NSA_RETURN_IF_ERROR(CheckOptional("y", args.y, rows * width, type, "rows·width"));
  exec.Enter("swiglu_backward");
  if (exec.backend == Backend::kCuda) return cuda::SwigluBackward(exec, args);
  const float* const dy = args.dy.as<float>().data();
  const float* const x = args.x.as<float>().data();
  float* const dx = args.dx.as<float>().data();
  float* const y = args.y.wanted() ? args.y.as<float>().data() : nullptr;
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = row * width;
    BackwardRow(width, dy + at, x + 2 * at, dx + 2 * at, y == nullptr ? nullptr : y + at);
  }
  return absl::OkStatus();
}

}  // namespace nsa
