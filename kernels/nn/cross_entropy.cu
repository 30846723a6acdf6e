// Cross-entropy on CUDA: one thread block per row, which holds it in registers (one warp where rows
// are short; without registers where they are longer than 57,344 or not a multiple of 16 bytes),
// computed in fp32. Then one thread block adds the losses of the rows in a fixed order.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/nn/cross_entropy.h"

namespace nsa::cuda {
namespace {

// What every exp(logit − top) is multiplied with in the gradient of a row.
__device__ float GradientFactor(int target, float sum, float scale) {
  return target < 0 ? 0.0f : scale / sum;
}

// Sum or maximum over a thread block; every thread gets the result. `scratch` has 33 floats.
template <bool kMax>
__device__ float BlockReduce(float value, float* scratch) {
  value = kMax ? WarpMax(value) : WarpSum(value);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  if (warps == 1) return value;
  __syncthreads();
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  if (warp == 0) {
    float all = lane < warps ? scratch[lane] : (kMax ? -INFINITY : 0.0f);
    all = kMax ? WarpMax(all) : WarpSum(all);
    if (lane == 0) scratch[32] = all;
  }
  __syncthreads();
  return scratch[32];
}

// Where a row is, and what is written of it.
struct Rows {
  const bf16* logits;
  const int* targets;
  float* row_loss;
  bf16* dlogits;
  int vocab, stride;
};

// The loss of a row whose greatest logit is `top` and whose sum of exp(logit − top) is `sum`.
__device__ void WriteLoss(const Rows& rows, int64_t row, float top, float sum) {
  const int target = rows.targets[row];
  const bf16* x = rows.logits + row * rows.stride;
  rows.row_loss[row] = target < 0 ? 0.0f : top + logf(sum) - __bfloat162float(x[target]);
}

// Eight columns from `c` on of a row: what they add to the maximum and to the sum, and their
// gradients. Columns behind the vocabulary count as −∞.
__device__ float MaxOf(const Float8& x, int c, int vocab) {
  float top = -INFINITY;
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    if (c + e < vocab) top = fmaxf(top, x.v[e]);
  }
  return top;
}
__device__ float SumOf(const Float8& x, int c, int vocab, float top) {
  float sum = 0;
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    if (c + e < vocab) sum += __expf(x.v[e] - top);
  }
  return sum;
}
__device__ Float8 GradientOf(const Float8& x, int c, int vocab, int target, float top, float factor,
                             float scale) {
  Float8 d;
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    d.v[e] = target < 0 || c + e >= vocab ? 0.0f : __expf(x.v[e] - top) * factor;
    if (c + e == target) d.v[e] -= scale;
  }
  return d;
}

// Rows that are no multiple of 16 bytes: one number per access.
__global__ void CrossEntropyKernel(Begin begin, Rows rows, float scale) {
  __shared__ float scratch[33];
  begin.WaitForPrevious();
  const int64_t row = blockIdx.x;
  const bf16* x = rows.logits + row * rows.stride;
  const int target = rows.targets[row];
  float top = -INFINITY;
  for (int c = threadIdx.x; c < rows.vocab; c += blockDim.x) {
    top = fmaxf(top, __bfloat162float(x[c]));
  }
  top = BlockReduce<true>(top, scratch);
  float sum = 0;
  for (int c = threadIdx.x; c < rows.vocab; c += blockDim.x) {
    sum += __expf(__bfloat162float(x[c]) - top);
  }
  sum = BlockReduce<false>(sum, scratch);
  if (threadIdx.x == 0) WriteLoss(rows, row, top, sum);
  if (rows.dlogits == nullptr) return;
  __syncthreads();  // dlogits may be logits: the target's logit must have been read by now
  const float factor = GradientFactor(target, sum, scale);
  for (int c = threadIdx.x; c < rows.stride; c += blockDim.x) {
    const float p =
        target < 0 || c >= rows.vocab ? 0.0f : __expf(__bfloat162float(x[c]) - top) * factor;
    rows.dlogits[row * rows.stride + c] = __float2bfloat16(c == target ? p - scale : p);
  }
}

// One warp per row, 16 bytes per access.
constexpr int kWarpRows = 8;  // rows of a thread block
__global__ void __launch_bounds__(kWarpRows* kWarp)
    CrossEntropyWarpKernel(Begin begin, Rows rows, int64_t count, float scale) {
  begin.WaitForPrevious();
  const int64_t row = int64_t{1} * blockIdx.x * kWarpRows + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (row >= count) return;
  const bf16* x = rows.logits + row * rows.stride;
  const int target = rows.targets[row];
  float top = -INFINITY;
  for (int c = lane * 8; c < rows.vocab; c += kWarp * 8) {
    top = fmaxf(top, MaxOf(Load8(x + c), c, rows.vocab));
  }
  top = WarpMax(top);
  float sum = 0;
  for (int c = lane * 8; c < rows.vocab; c += kWarp * 8) {
    sum += SumOf(Load8(x + c), c, rows.vocab, top);
  }
  sum = WarpSum(sum);
  if (lane == 0) WriteLoss(rows, row, top, sum);
  if (rows.dlogits == nullptr) return;
  __syncwarp();  // dlogits may be logits: the target's logit must have been read by now
  const float factor = GradientFactor(target, sum, scale);
  for (int c = lane * 8; c < rows.stride; c += kWarp * 8) {
    Store8(rows.dlogits + row * rows.stride + c,
           GradientOf(Load8(x + c), c, rows.vocab, target, top, factor, scale));
  }
}

// One thread block per row, 16 bytes per access; each thread holds its kPieces accesses, so that a
// row is read once. With kPieces = 0 it is read again for the sum and for the gradient.
constexpr int kRowThreads = 1024;
template <int kPieces>
__global__ void __launch_bounds__(kRowThreads)
    CrossEntropyRowKernel(Begin begin, Rows rows, float scale) {
  __shared__ float scratch[33];
  uint4 held[kPieces > 0 ? kPieces : 1];
  begin.WaitForPrevious();
  const int64_t row = blockIdx.x;
  const bf16* x = rows.logits + row * rows.stride;
  const int target = rows.targets[row];
  const int first = threadIdx.x * 8, step = kRowThreads * 8;
  // Calls act(logits, column) for this thread's columns.
  const auto each = [&](auto act) {
    if constexpr (kPieces > 0) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int c = first + i * step;
        if (c < rows.stride) act(AsFloats(held[i]), c);
      }
    } else {
      for (int c = first; c < rows.stride; c += step) act(Load8(x + c), c);
    }
  };
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const int c = first + i * step;
    if (c < rows.stride) held[i] = *reinterpret_cast<const uint4*>(x + c);
  }
  float top = -INFINITY;
  each([&](const Float8& v, int c) { top = fmaxf(top, MaxOf(v, c, rows.vocab)); });
  top = BlockReduce<true>(top, scratch);
  float sum = 0;
  each([&](const Float8& v, int c) { sum += SumOf(v, c, rows.vocab, top); });
  sum = BlockReduce<false>(sum, scratch);
  if (threadIdx.x == 0) WriteLoss(rows, row, top, sum);
  if (rows.dlogits == nullptr) return;
  __syncthreads();  // dlogits may be logits: the target's logit must have been read by now
  const float factor = GradientFactor(target, sum, scale);
  each([&](const Float8& v, int c) {
    Store8(rows.dlogits + row * rows.stride + c,
           GradientOf(v, c, rows.vocab, target, top, factor, scale));
  });
}

// One thread block of 1,024 threads. Thread i adds rows i, i + 1024, … in fp64; the threads' sums
// are added by a fixed tree.
__global__ void MeanRowLossKernel(Begin begin, const float* row_loss, const int* targets,
                                  int64_t rows, float* mean) {
  __shared__ double sums[1024];
  __shared__ int counts[1024];
  begin.WaitForPrevious();
  double sum = 0;
  int count = 0;
  for (int64_t row = threadIdx.x; row < rows; row += blockDim.x) {
    sum += row_loss[row];
    count += targets[row] >= 0;
  }
  sums[threadIdx.x] = sum;
  counts[threadIdx.x] = count;
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      sums[threadIdx.x] += sums[threadIdx.x + half];
      counts[threadIdx.x] += counts[threadIdx.x + half];
    }
  }
  if (threadIdx.x == 0) *mean = counts[0] == 0 ? 0.0f : static_cast<float>(sums[0] / counts[0]);
}

template <int kPieces>
absl::Status LaunchHeld(const Exec& exec, const Rows& rows, unsigned int count, float scale) {
  return Launch(exec, "cross_entropy", CrossEntropyRowKernel<kPieces>,
                {.grid = count, .block = kRowThreads}, rows, scale);
}

}  // namespace

absl::Status CrossEntropy(const Exec& exec, const CrossEntropyArgs& args) {
  if (args.rows == 0) return absl::OkStatus();
  const float scale = args.gradient_scale;
  const Rows rows = {DataOf<bf16>(args.logits),    DataOf<int>(args.targets),
                     DataOf<float>(args.row_loss), DataOf<bf16>(args.dlogits),
                     static_cast<int>(args.vocab), static_cast<int>(args.stride())};
  const auto count = static_cast<unsigned int>(args.rows);
  if (rows.stride % 8 != 0) {
    const unsigned int threads = args.vocab <= 512 ? 32 : args.vocab <= 4096 ? 256 : 1024;
    return Launch(exec, "cross_entropy", CrossEntropyKernel, {.grid = count, .block = threads},
                  rows, scale);
  }
  if (rows.stride <= 2048) {
    return Launch(exec, "cross_entropy", CrossEntropyWarpKernel,
                  {.grid = GridFor(args.rows, kWarpRows), .block = kWarpRows * kWarp}, rows,
                  args.rows, scale);
  }
  constexpr int kPiece = 8 * kRowThreads;
  if (rows.stride <= 2 * kPiece) return LaunchHeld<2>(exec, rows, count, scale);
  if (rows.stride <= 4 * kPiece) return LaunchHeld<4>(exec, rows, count, scale);
  if (rows.stride <= 7 * kPiece) return LaunchHeld<7>(exec, rows, count, scale);
  return LaunchHeld<0>(exec, rows, count, scale);
}

absl::Status MeanRowLoss(const Exec& exec, const MeanRowLossArgs& args) {
  return Launch(exec, "cross_entropy", MeanRowLossKernel, {.grid = 1, .block = 1024},
                DataOf<float>(args.row_loss), DataOf<int>(args.targets), args.rows,
                DataOf<float>(args.mean_loss));
}

}  // namespace nsa::cuda
