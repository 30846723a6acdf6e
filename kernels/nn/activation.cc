#include "kernels/nn/activation.h"

#include "common/base/status.h"
#include "kernels/check.h"
#include "kernels/vector_exp.h"

namespace nsa {
namespace {

inline float Sigmoid(float x) { return 1.0f / (1.0f + VectorExp(-x)); }

void SiluCpu(int64_t size, const float* x, float* y) {
#pragma omp parallel for simd schedule(static)
  for (int64_t i = 0; i < size; ++i) y[i] = x[i] * Sigmoid(x[i]);
}

// Each `y` may be null.
void SiluBackwardCpu(int64_t size, const float* dy, const float* x, float* dx, float* y) {
#pragma omp parallel for simd schedule(static)
  for (int64_t i = 0; i < size; ++i) {
    const float at = x[i], s = Sigmoid(at);
    dx[i] = dy[i] * s * (1.0f + at * (1.0f - s));
    if (y != nullptr) y[i] = at * s;
  }
}

// The comparison is false for NaN, which therefore stays.
void Relu2Cpu(int64_t size, const float* x, float* y) {
#pragma omp parallel for simd schedule(static)
  for (int64_t i = 0; i < size; ++i) y[i] = x[i] < 0 ? 0.0f : x[i] * x[i];
}

void Relu2BackwardCpu(int64_t size, const float* dy, const float* x, float* dx, float* y) {
#pragma omp parallel for simd schedule(static)
  for (int64_t i = 0; i < size; ++i) {
    const float at = x[i];
    dx[i] = at < 0 ? 0.0f : dy[i] * 2.0f * at;
    if (y != nullptr) y[i] = at < 0 ? 0.0f : at * at;
  }
}

}  // namespace

absl::Status Activate(const Exec& exec, const ActivateArgs& args) {
  const DType type = ActivationType(exec);
  NSA_RETURN_IF_ERROR(CheckTensor("x", args.x, args.x.size, type, "N"));
  NSA_RETURN_IF_ERROR(CheckTensor("y", args.y, args.x.size, type, "N"));
  const bool silu = args.kind == Activation::kSilu;
  exec.Enter(silu ? "silu" : "relu2");
  if (exec.backend == Backend::kCuda) return cuda::Activate(exec, args);
  (silu ? SiluCpu : Relu2Cpu)(args.x.size, args.x.as<float>().data(), args.y.as<float>().data());
  return absl::OkStatus();
}

absl::Status ActivateBackward(const Exec& exec, const ActivateBackwardArgs& args) {
  const DType type = ActivationType(exec);
  NSA_RETURN_IF_ERROR(CheckTensor("dy", args.dy, args.dy.size, type, "N"));
  NSA_RETURN_IF_ERROR(CheckTensor("x", args.x, args.dy.size, type, "N"));
  NSA_RETURN_IF_ERROR(CheckTensor("dx", args.dx, args.dy.size, type, "N"));
  NSA_RETURN_IF_ERROR(CheckOptional("y", args.y, args.dy.size, type, "N"));
  const bool silu = args.kind == Activation::kSilu;
  exec.Enter(silu ? "silu_backward" : "relu2_backward");
  if (exec.backend == Backend::kCuda) return cuda::ActivateBackward(exec, args);
  (silu ? SiluBackwardCpu : Relu2BackwardCpu)(
      args.dy.size, args.dy.as<float>().data(), args.x.as<float>().data(),
      args.dx.as<float>().data(), args.y.wanted() ? args.y.as<float>().data() : nullptr);
  return absl::OkStatus();
}

}  // namespace nsa
