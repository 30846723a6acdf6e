// SiLU on CUDA, eight elements per thread; limited by memory bandwidth. The last thread processes
// the remaining elements, fewer than eight, one by one.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/nn/silu.h"

namespace nsa::cuda {
namespace {

__device__ __forceinline__ float Sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

__device__ __forceinline__ float SiluOf(float x) { return x * Sigmoid(x); }

__device__ __forceinline__ float GradientOf(float dy, float x) {
  const float s = Sigmoid(x);
  return dy * s * (1.0f + x * (1.0f - s));
}

__global__ void SiluKernel(Begin start, const bf16* x, bf16* y, int64_t size) {
  start.WaitForPrevious();
  const int64_t begin = 8 * (int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x);
  if (begin + 8 <= size) {
    Float8 v = Load8(x + begin);
#pragma unroll
    for (float& e : v.v) e = SiluOf(e);
    Store8(y + begin, v);
  } else {
    for (int64_t i = begin; i < size; ++i) y[i] = __float2bfloat16(SiluOf(__bfloat162float(x[i])));
  }
}

__global__ void SiluBackwardKernel(Begin start, const bf16* dy, const bf16* x, bf16* dx,
                                   int64_t size) {
  start.WaitForPrevious();
  const int64_t begin = 8 * (int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x);
  if (begin + 8 <= size) {
    Float8 g = Load8(dy + begin);
    const Float8 v = Load8(x + begin);
#pragma unroll
    for (int e = 0; e < 8; ++e) g.v[e] = GradientOf(g.v[e], v.v[e]);
    Store8(dx + begin, g);
  } else {
    for (int64_t i = begin; i < size; ++i) {
      dx[i] = __float2bfloat16(GradientOf(__bfloat162float(dy[i]), __bfloat162float(x[i])));
    }
  }
}

}  // namespace

absl::Status Silu(const Exec& exec, const SiluArgs& args) {
  if (args.x.size == 0) return absl::OkStatus();
  return Launch(exec, "silu", SiluKernel, {.grid = GridFor(args.x.size, 8 * 256), .block = 256},
                DataOf<bf16>(args.x), DataOf<bf16>(args.y), args.x.size);
}

absl::Status SiluBackward(const Exec& exec, const SiluBackwardArgs& args) {
  if (args.x.size == 0) return absl::OkStatus();
  return Launch(exec, "silu_backward", SiluBackwardKernel,
                {.grid = GridFor(args.x.size, 8 * 256), .block = 256}, DataOf<bf16>(args.dy),
                DataOf<bf16>(args.x), DataOf<bf16>(args.dx), args.x.size);
}

}  // namespace nsa::cuda
