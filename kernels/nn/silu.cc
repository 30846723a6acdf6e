#include "kernels/nn/silu.h"

#include "common/base/status.h"
#include "kernels/check.h"
#include "kernels/vector_exp.h"

namespace nsa {
namespace {

inline float Sigmoid(float x) { return 1.0f / (1.0f + VectorExp(-x)); }

}  // namespace

absl::Status Silu(const Exec& exec, const SiluArgs& args) {
  const DType type = ActivationType(exec);
  NSA_RETURN_IF_ERROR(CheckTensor("x", args.x, args.x.size, type, "N"));
  NSA_RETURN_IF_ERROR(CheckTensor("y", args.y, args.x.size, type, "N"));
  exec.Enter("silu");
  if (exec.backend == Backend::kCuda) return cuda::Silu(exec, args);
  const float* x = args.x.as<float>().data();
  float* y = args.y.as<float>().data();
#pragma omp parallel for simd schedule(static)
  for (int64_t i = 0; i < args.x.size; ++i) y[i] = x[i] * Sigmoid(x[i]);
  return absl::OkStatus();
}

absl::Status SiluBackward(const Exec& exec, const SiluBackwardArgs& args) {
  const DType type = ActivationType(exec);
  NSA_RETURN_IF_ERROR(CheckTensor("dy", args.dy, args.dy.size, type, "N"));
  NSA_RETURN_IF_ERROR(CheckTensor("x", args.x, args.dy.size, type, "N"));
  NSA_RETURN_IF_ERROR(CheckTensor("dx", args.dx, args.dy.size, type, "N"));
  exec.Enter("silu_backward");
  if (exec.backend == Backend::kCuda) return cuda::SiluBackward(exec, args);
  const float* dy = args.dy.as<float>().data();
  const float* x = args.x.as<float>().data();
  float* dx = args.dx.as<float>().data();
#pragma omp parallel for simd schedule(static)
  for (int64_t i = 0; i < args.dy.size; ++i) {
    const float s = Sigmoid(x[i]);
    dx[i] = dy[i] * s * (1.0f + x[i] * (1.0f - s));
  }
  return absl::OkStatus();
}

}  // namespace nsa
