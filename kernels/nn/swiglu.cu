// SwiGLU on CUDA, eight columns of a row per thread; limited by memory bandwidth: 6 bytes per
// column forward, 10 or 12 backward.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/nn/swiglu.h"

namespace nsa::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float Sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

// Where a thread's eight columns of a half are: in a matrix of `width` columns, and in x.
struct Chunk {
  int64_t narrow, wide;

  __device__ Chunk(int64_t i, int64_t chunks) {
    const int64_t row = i / chunks, column = 8 * (i - row * chunks);
    narrow = 8 * row * chunks + column;
    wide = 16 * row * chunks + column;
  }
};

// y of eight columns.
__device__ __forceinline__ Float8 ValuesOf(const Float8& gate, const Float8& up) {
  Float8 y;
#pragma unroll
  for (int e = 0; e < 8; ++e) y.v[e] = gate.v[e] * Sigmoid(gate.v[e]) * up.v[e];
  return y;
}

// chunks: of a half of a row; count: of all rows.
__global__ void __launch_bounds__(kThreads)
    SwigluKernel(Begin begin, const bf16* x, bf16* y, int64_t chunks, int64_t count) {
  begin.WaitForPrevious();
  const int64_t i = int64_t{1} * blockIdx.x * kThreads + threadIdx.x;
  if (i >= count) return;
  const Chunk at(i, chunks);
  Store8(y + at.narrow, ValuesOf(Load8(x + at.wide), Load8(x + at.wide + 8 * chunks)));
}

// A thread reads all of its columns before it writes any: dx may be x, and y may be dy.
__global__ void __launch_bounds__(kThreads)
    SwigluBackwardKernel(Begin begin, const bf16* dy, const bf16* x, bf16* dx, bf16* y,
                         int64_t chunks, int64_t count) {
  begin.WaitForPrevious();
  const int64_t i = int64_t{1} * blockIdx.x * kThreads + threadIdx.x;
  if (i >= count) return;
  const Chunk at(i, chunks);
  const Float8 d = Load8(dy + at.narrow), gate = Load8(x + at.wide),
               up = Load8(x + at.wide + 8 * chunks);
  Float8 d_gate, d_up;
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const float g = gate.v[e], s = Sigmoid(g);
    d_gate.v[e] = d.v[e] * up.v[e] * s * (1.0f + g * (1.0f - s));
    d_up.v[e] = d.v[e] * (g * s);
  }
  Store8(dx + at.wide, d_gate);
  Store8(dx + at.wide + 8 * chunks, d_up);
  if (y != nullptr) Store8(y + at.narrow, ValuesOf(gate, up));
}

}  // namespace

absl::Status Swiglu(const Exec& exec, const SwigluArgs& args) {
  NSA_RETURN_IF_ERROR(CheckMultipleOf8("swiglu", "width", args.width));
  if (args.rows == 0) return absl::OkStatus();
  const int64_t chunks = args.width / 8, count = args.rows * chunks;
  return Launch(exec, "swiglu", SwigluKernel, {.grid = GridFor(count, kThreads), .block = kThreads},
                DataOf<bf16>(args.x), DataOf<bf16>(args.y), chunks, count);
}

absl::Status SwigluBackward(const Exec& exec, const SwigluBackwardArgs& args) {
  NSA_RETURN_IF_ERROR(CheckMultipleOf8("swiglu_backward", "width", args.width));
  if (args.rows == 0) return absl::OkStatus();
  const int64_t chunks = args.width / 8, count = args.rows * chunks;
  return Launch(exec, "swiglu_backward", SwigluBackwardKernel,
                {.grid = GridFor(count, kThreads), .block = kThreads}, DataOf<bf16>(args.dy),
                DataOf<bf16>(args.x), DataOf<bf16>(args.dx), DataOf<bf16>(args.y), chunks, count);
}

}  // namespace nsa::cuda
