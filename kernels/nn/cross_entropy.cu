// Cross-entropy on CUDA: one thread block per row (one warp where the vocabulary is small),
// computed in fp32; repeated reads of the logits come from L1. Then one thread block adds the
// losses of the rows in a fixed order. With a softcap, a template parameter, each read of a logit
// is followed by a tanh; only the maximum needs none, because tanh is monotonic.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/nn/cross_entropy.h"

namespace nsa::cuda {
namespace {

// What the gradient and the softcap need. z_loss is 0 or above, cap is 0 without a softcap.
struct Options {
  float scale, z_loss, cap, over_cap;
};

// A logit as it is in the softmax, and the derivative of that by the logit.
struct Capped {
  float y, slope;
};
template <bool kCap>
__device__ Capped Cap(float x, const Options& options) {
  if constexpr (kCap) {
    const float t = tanhf(x * options.over_cap);
    return {options.cap * t, 1 - t * t};
  } else {
    return {x, 1};
  }
}

// What every exp(y − top) is multiplied with in the gradient of a row.
__device__ float GradientFactor(int target, float top, float sum, const Options& options) {
  if (target < 0) return 0;
  if (options.z_loss == 0) return options.scale / sum;
  return options.scale * (1 + 2 * options.z_loss * (top + logf(sum))) / sum;
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

template <bool kCap>
__global__ void CrossEntropyKernel(Begin begin, const bf16* logits, const int* targets,
                                   float* row_loss, bf16* dlogits, int vocab, Options options) {
  __shared__ float scratch[33];
  begin.WaitForPrevious();
  const int64_t row = blockIdx.x;
  const bf16* x = logits + row * vocab;
  const int target = targets[row];
  float top = -INFINITY;
  for (int c = threadIdx.x; c < vocab; c += blockDim.x) top = fmaxf(top, __bfloat162float(x[c]));
  top = Cap<kCap>(BlockReduce<true>(top, scratch), options).y;
  float sum = 0;
  for (int c = threadIdx.x; c < vocab; c += blockDim.x) {
    sum += __expf(Cap<kCap>(__bfloat162float(x[c]), options).y - top);
  }
  sum = BlockReduce<false>(sum, scratch);
  if (threadIdx.x == 0) {
    row_loss[row] =
        target < 0 ? 0.0f : top + logf(sum) - Cap<kCap>(__bfloat162float(x[target]), options).y;
  }
  if (dlogits == nullptr) return;
  __syncthreads();  // dlogits may be logits: the target's logit must have been read by now
  const float factor = GradientFactor(target, top, sum, options);
  for (int c = threadIdx.x; c < vocab; c += blockDim.x) {
    const Capped capped = Cap<kCap>(__bfloat162float(x[c]), options);
    const float p = target < 0 ? 0.0f : __expf(capped.y - top) * factor;
    const float dy = c == target ? p - options.scale : p;
    dlogits[row * vocab + c] = __float2bfloat16(kCap ? dy * capped.slope : dy);
  }
}

// The same for a small vocabulary that is a multiple of 8: one warp per row, 16 bytes per access.
constexpr int kWarpRows = 8;  // rows of a thread block
template <bool kCap>
__global__ void __launch_bounds__(kWarpRows* kWarp)
    CrossEntropyWarpKernel(Begin begin, const bf16* logits, const int* targets, float* row_loss,
                           bf16* dlogits, int64_t rows, int vocab, Options options) {
  begin.WaitForPrevious();
  const int64_t row = int64_t{1} * blockIdx.x * kWarpRows + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (row >= rows) return;
  const bf16* x = logits + row * vocab;
  const int target = targets[row];
  float top = -INFINITY;
  for (int c = lane * 8; c < vocab; c += kWarp * 8) {
    const Float8 v = Load8(x + c);
#pragma unroll
    for (int e = 0; e < 8; ++e) top = fmaxf(top, v.v[e]);
  }
  top = Cap<kCap>(WarpMax(top), options).y;
  float sum = 0;
  for (int c = lane * 8; c < vocab; c += kWarp * 8) {
    const Float8 v = Load8(x + c);
#pragma unroll
    for (int e = 0; e < 8; ++e) sum += __expf(Cap<kCap>(v.v[e], options).y - top);
  }
  sum = WarpSum(sum);
  if (lane == 0) {
    row_loss[row] =
        target < 0 ? 0.0f : top + logf(sum) - Cap<kCap>(__bfloat162float(x[target]), options).y;
  }
  if (dlogits == nullptr) return;
  __syncwarp();  // dlogits may be logits: the target's logit must have been read by now
  const float factor = GradientFactor(target, top, sum, options);
  for (int c = lane * 8; c < vocab; c += kWarp * 8) {
    Float8 v = Load8(x + c);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const Capped capped = Cap<kCap>(v.v[e], options);
      v.v[e] = target < 0 ? 0.0f : __expf(capped.y - top) * factor;
      if (c + e == target) v.v[e] -= options.scale;
      if constexpr (kCap) v.v[e] *= capped.slope;
    }
    Store8(dlogits + row * vocab + c, v);
  }
}

// One thread block of 1,024 threads. Thread i adds rows i, i + 1024, … in fp64; the threads' sums
// are added by a fixed tree.
__global__ void MeanLossKernel(Begin begin, const float* row_loss, const int* targets, int64_t rows,
                               float* mean) {
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

template <bool kCap>
absl::Status LaunchRows(const Exec& exec, const CrossEntropyArgs& args) {
  const Options options = {args.gradient_scale, args.z_loss, args.softcap,
                           kCap ? 1 / args.softcap : 0};
  if (args.vocab <= 2048 && args.vocab % 8 == 0) {
    return Launch(exec, "cross_entropy", CrossEntropyWarpKernel<kCap>,
                  {.grid = GridFor(args.rows, kWarpRows), .block = kWarpRows * kWarp},
                  DataOf<bf16>(args.logits), DataOf<int>(args.targets),
                  DataOf<float>(args.row_loss), DataOf<bf16>(args.dlogits), args.rows,
                  static_cast<int>(args.vocab), options);
  }
  const unsigned int threads = args.vocab <= 512 ? 32 : args.vocab <= 4096 ? 256 : 1024;
  return Launch(exec, "cross_entropy", CrossEntropyKernel<kCap>,
                {.grid = static_cast<unsigned int>(args.rows), .block = threads},
                DataOf<bf16>(args.logits), DataOf<int>(args.targets), DataOf<float>(args.row_loss),
                DataOf<bf16>(args.dlogits), static_cast<int>(args.vocab), options);
}

}  // namespace

absl::Status CrossEntropy(const Exec& exec, const CrossEntropyArgs& args) {
  if (args.rows > 0) {
    NSA_RETURN_IF_ERROR(args.softcap > 0 ? LaunchRows<true>(exec, args)
                                         : LaunchRows<false>(exec, args));
  }
  return Launch(exec, "cross_entropy", MeanLossKernel, {.grid = 1, .block = 1024},
                DataOf<float>(args.row_loss), DataOf<int>(args.targets), args.rows,
                DataOf<float>(args.mean_loss));
}

}  // namespace nsa::cuda
