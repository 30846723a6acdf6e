// Activations on CUDA, eight elements per thread; limited by memory bandwidth. The last thread
// processes the remaining elements, fewer than eight, one by one.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/nn/activation.h"

namespace nsa::cuda {
namespace {

__device__ __forceinline__ float Sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

template <Activation kKind>
__device__ __forceinline__ float ValueOf(float x) {
  if (kKind == Activation::kSilu) return x * Sigmoid(x);
  return x < 0 ? 0.0f : x * x;  // NaN stays
}

template <Activation kKind>
__device__ __forceinline__ float GradientOf(float dy, float x) {
  if (kKind == Activation::kRelu2) return x < 0 ? 0.0f : dy * 2.0f * x;
  const float s = Sigmoid(x);
  return dy * s * (1.0f + x * (1.0f - s));
}

template <Activation kKind>
__global__ void ActivateKernel(Begin start, const bf16* x, bf16* y, int64_t size) {
  start.WaitForPrevious();
  const int64_t begin = 8 * (int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x);
  if (begin + 8 <= size) {
    Float8 v = Load8(x + begin);
#pragma unroll
    for (float& e : v.v) e = ValueOf<kKind>(e);
    Store8(y + begin, v);
  } else {
    for (int64_t i = begin; i < size; ++i) {
      y[i] = __float2bfloat16(ValueOf<kKind>(__bfloat162float(x[i])));
    }
  }
}

template <Activation kKind>
__global__ void ActivateBackwardKernel(Begin start, const bf16* dy, const bf16* x, bf16* dx,
                                       bf16* y, int64_t size) {
  start.WaitForPrevious();
  const int64_t begin = 8 * (int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x);
  if (begin + 8 <= size) {
    Float8 g = Load8(dy + begin), v = Load8(x + begin);
#pragma unroll
    for (int e = 0; e < 8; ++e) g.v[e] = GradientOf<kKind>(g.v[e], v.v[e]);
    Store8(dx + begin, g);
    if (y == nullptr) return;
#pragma unroll
    for (float& e : v.v) e = ValueOf<kKind>(e);
    Store8(y + begin, v);
  } else {
    for (int64_t i = begin; i < size; ++i) {
      const float at = __bfloat162float(x[i]);
      dx[i] = __float2bfloat16(GradientOf<kKind>(__bfloat162float(dy[i]), at));
      if (y != nullptr) y[i] = __float2bfloat16(ValueOf<kKind>(at));
    }
  }
}

}  // namespace

absl::Status Activate(const Exec& exec, const ActivateArgs& args) {
  if (args.x.size == 0) return absl::OkStatus();
  const bool silu = args.kind == Activation::kSilu;
  return Launch(exec, silu ? "silu" : "relu2",
                silu ? ActivateKernel<Activation::kSilu> : ActivateKernel<Activation::kRelu2>,
                {.grid = GridFor(args.x.size, 8 * 256), .block = 256}, DataOf<bf16>(args.x),
                DataOf<bf16>(args.y), args.x.size);
}

absl::Status ActivateBackward(const Exec& exec, const ActivateBackwardArgs& args) {
  if (args.x.size == 0) return absl::OkStatus();
  const bool silu = args.kind == Activation::kSilu;
  return Launch(
      exec, silu ? "silu_backward" : "relu2_backward",
      silu ? ActivateBackwardKernel<Activation::kSilu> : ActivateBackwardKernel<Activation::kRelu2>,
      {.grid = GridFor(args.x.size, 8 * 256), .block = 256}, DataOf<bf16>(args.dy),
      DataOf<bf16>(args.x), DataOf<bf16>(args.dx), DataOf<bf16>(args.y), args.x.size);
}

}  // namespace nsa::cuda
