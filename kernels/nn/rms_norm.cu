// RMSNorm on CUDA: one warp per row, 16 bytes per lane and access; limited by memory bandwidth (4
// bytes per element forward, 8 or 10 backward). dweight is summed over a constant number of row
// ranges, whose sums are added in order.
#include <algorithm>

#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/occupancy.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/nn/rms_norm.h"

namespace nsa::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kMostChunks = 4;  // chunks of 256 columns that a warp keeps in registers, at most

// Eight columns of y.
__device__ __forceinline__ void StoreNormalized(bf16* y, Float8 x, const Float8& weight, float r) {
#pragma unroll
  for (int i = 0; i < 8; ++i) x.v[i] *= r * weight.v[i];
  Store8(y, x);
}

// A warp keeps its row in registers: dim ≤ 256 · kChunks.
template <int kChunks>
__global__ void __launch_bounds__(kWarps* kWarp)
    RmsNormKernel(Begin begin, const bf16* x, const bf16* weight, bf16* y, float* rstd,
                  int64_t rows, int dim, float eps) {
  begin.WaitForPrevious();
  const int64_t row = int64_t{1} * blockIdx.x * kWarps + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (row >= rows) return;
  uint4 raw[kChunks], raw_weight[kChunks];
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const int c = min((k * kWarp + lane) * 8, dim - 8);
    raw[k] = *reinterpret_cast<const uint4*>(x + row * dim + c);
    raw_weight[k] = *reinterpret_cast<const uint4*>(weight + c);
  }
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    if ((k * kWarp + lane) * 8 >= dim) break;
    const Float8 v = AsFloats(raw[k]);
#pragma unroll
    for (int i = 0; i < 8; ++i) squares = fmaf(v.v[i], v.v[i], squares);
  }
  const float r = rsqrtf(WarpSum(squares) / dim + eps);
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const int c = (k * kWarp + lane) * 8;
    if (c >= dim) break;
    StoreNormalized(y + row * dim + c, AsFloats(raw[k]), AsFloats(raw_weight[k]), r);
  }
  if (lane == 0 && rstd != nullptr) rstd[row] = r;
}

// The same for wider rows, which are read twice.
__global__ void __launch_bounds__(kWarps* kWarp)
    RmsNormWideKernel(Begin begin, const bf16* x, const bf16* weight, bf16* y, float* rstd,
                      int64_t rows, int dim, float eps) {
  begin.WaitForPrevious();
  const int64_t row = int64_t{1} * blockIdx.x * kWarps + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (row >= rows) return;
  const bf16* from = x + row * dim;
  float squares = 0;
  for (int c = lane * 8; c < dim; c += kWarp * 8) {
    const Float8 v = Load8(from + c);
#pragma unroll
    for (int i = 0; i < 8; ++i) squares = fmaf(v.v[i], v.v[i], squares);
  }
  const float r = rsqrtf(WarpSum(squares) / dim + eps);
  for (int c = lane * 8; c < dim; c += kWarp * 8) {
    StoreNormalized(y + row * dim + c, Load8(from + c), Load8(weight + c), r);
  }
  if (lane == 0 && rstd != nullptr) rstd[row] = r;
}

// Number of row ranges for the gradient of the weight: a constant, so that the order of sums does
// not depend on the GPU.
constexpr int kBlocks = 512;

// dweight of the thread block: adds the warps' sums in order, 256 columns at a time.
template <int kChunks>
__device__ __forceinline__ void StoreWarpSums(const Float8 (&sum)[kChunks],
                                              float (&sums)[kWarps][kWarp * 8], int dim,
                                              float* partial) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[warp][lane * 8 + i] = sum[k].v[i];
    __syncthreads();
    const int c = k * kWarp * 8 + threadIdx.x;
    if (c < dim) {
      float total = 0;
      for (int from = 0; from < kWarps; ++from) total += sums[from][threadIdx.x];
      partial[int64_t{1} * blockIdx.x * dim + c] = total;
    }
    __syncthreads();
  }
}

// A thread block processes rows [rows·block/blocks, …) and each warp every eighth of them. A warp
// keeps a row and its part of dweight in registers: dim ≤ 256 · kChunks.
template <int kChunks>
__global__ void __launch_bounds__(kWarps* kWarp)
    RmsNormBackwardKernel(Begin start, const bf16* dy, const bf16* x, const bf16* weight,
                          const float* rstd, bf16* dx, bf16* y, float* partial, int64_t rows,
                          int dim) {
  __shared__ float sums[kWarps][kWarp * 8];
  start.WaitForPrevious();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  Float8 w[kChunks] = {}, sum[kChunks] = {};
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const int c = (k * kWarp + lane) * 8;
    if (c < dim) w[k] = Load8(weight + c);
  }
  const int64_t begin = rows * blockIdx.x / gridDim.x, end = rows * (blockIdx.x + 1) / gridDim.x;
  for (int64_t row = begin + warp; row < end; row += kWarps) {
    const float r = rstd[row];
    uint4 g_raw[kChunks], v_raw[kChunks], out_raw[kChunks];
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      const int c = min((k * kWarp + lane) * 8, dim - 8);
      g_raw[k] = *reinterpret_cast<const uint4*>(dy + row * dim + c);
      v_raw[k] = *reinterpret_cast<const uint4*>(x + row * dim + c);
      out_raw[k] = *reinterpret_cast<const uint4*>(dx + row * dim + c);
    }
    float dot = 0;
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      if ((k * kWarp + lane) * 8 >= dim) break;
      const Float8 g = AsFloats(g_raw[k]), v = AsFloats(v_raw[k]);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        dot = fmaf(g.v[i] * w[k].v[i], v.v[i], dot);
        sum[k].v[i] = fmaf(g.v[i], v.v[i] * r, sum[k].v[i]);
      }
    }
    const float shift = WarpSum(dot) / dim * r * r;
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      const int c = (k * kWarp + lane) * 8;
      if (c >= dim) break;
      const Float8 g = AsFloats(g_raw[k]), v = AsFloats(v_raw[k]);
      Float8 out = AsFloats(out_raw[k]);
#pragma unroll
      for (int i = 0; i < 8; ++i) out.v[i] += r * (g.v[i] * w[k].v[i] - v.v[i] * shift);
      Store8(dx + row * dim + c, out);
      if (y != nullptr) StoreNormalized(y + row * dim + c, v, w[k], r);
    }
  }
  StoreWarpSums<kChunks>(sum, sums, dim, partial);
}

// The same for wider rows, which are read twice. Each warp sums dweight in shared memory, for as
// many columns as fit, at most `slice`; blockIdx.y selects the columns.
constexpr int WideSharedBytes(int columns) { return 4 * kWarps * columns; }
constexpr int kWideSlice = 4096, kNarrowSlice = 3072;
static_assert(WideSharedBytes(kWideSlice) <= kSharedOfA100);
static_assert(WideSharedBytes(kNarrowSlice) <= kSharedOfSmallest);

__global__ void __launch_bounds__(kWarps* kWarp)
    RmsNormBackwardWideKernel(Begin start, const bf16* dy, const bf16* x, const bf16* weight,
                              const float* rstd, bf16* dx, bf16* y, float* partial, int64_t rows,
                              int dim, int slice) {
  extern __shared__ float wide_sums[];  // [warps][columns]
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int from = blockIdx.y * slice, columns = min(slice, dim - from);
  float* mine = wide_sums + warp * columns;
  for (int c = lane; c < columns; c += kWarp) mine[c] = 0;
  __syncwarp();
  start.WaitForPrevious();
  const int64_t begin = rows * blockIdx.x / gridDim.x, end = rows * (blockIdx.x + 1) / gridDim.x;
  for (int64_t row = begin + warp; row < end; row += kWarps) {
    const float r = rstd[row];
    float dot = 0;
    for (int c = lane * 8; c < dim; c += kWarp * 8) {
      const Float8 g = Load8(dy + row * dim + c), v = Load8(x + row * dim + c),
                   w = Load8(weight + c);
#pragma unroll
      for (int i = 0; i < 8; ++i) dot = fmaf(g.v[i] * w.v[i], v.v[i], dot);
      if (c < from || c >= from + columns) continue;
        // mine[] is laid out as [8][columns/8], so that the lanes access neighbouring addresses.
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        mine[i * (columns / 8) + (c - from) / 8] += g.v[i] * v.v[i] * r;
      }
    }
    const float shift = WarpSum(dot) / dim * r * r;
    for (int c = from + lane * 8; c < from + columns; c += kWarp * 8) {
      const Float8 g = Load8(dy + row * dim + c), v = Load8(x + row * dim + c),
                   w = Load8(weight + c);
      Float8 out = Load8(dx + row * dim + c);
#pragma unroll
      for (int i = 0; i < 8; ++i) out.v[i] += r * (g.v[i] * w.v[i] - v.v[i] * shift);
      Store8(dx + row * dim + c, out);
      if (y != nullptr) StoreNormalized(y + row * dim + c, v, w, r);
    }
  }
  __syncthreads();
  for (int c = threadIdx.x; c < columns; c += blockDim.x) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += wide_sums[w * columns + c % 8 * (columns / 8) + c / 8];
    partial[int64_t{1} * blockIdx.x * dim + from + c] = sum;
  }
}

}  // namespace

int64_t RmsNormBackwardWorkspaceBytes(int64_t dim) { return 4 * kBlocks * dim; }

absl::Status RmsNorm(const Exec& exec, const RmsNormArgs& args) {
  NSA_RETURN_IF_ERROR(CheckMultipleOf8("rms_norm", "dim", args.dim));
  if (args.rows == 0) return absl::OkStatus();
  const auto launch = [&](auto* kernel) {
    return Launch(exec, "rms_norm", kernel,
                  {.grid = GridFor(args.rows, kWarps), .block = kWarps * kWarp},
                  DataOf<bf16>(args.x), DataOf<bf16>(args.weight), DataOf<bf16>(args.y),
                  DataOf<float>(args.rstd), args.rows, static_cast<int>(args.dim), args.eps);
  };
  switch (GridFor(args.dim, kWarp * 8)) {
    case 1:
      return launch(RmsNormKernel<1>);
    case 2:
      return launch(RmsNormKernel<2>);
    case 3:
      return launch(RmsNormKernel<3>);
    case kMostChunks:
      return launch(RmsNormKernel<kMostChunks>);
    default:
      return launch(RmsNormWideKernel);
  }
}

absl::Status RmsNormBackward(const Exec& exec, const RmsNormBackwardArgs& args) {
  NSA_RETURN_IF_ERROR(CheckMultipleOf8("rms_norm_backward", "dim", args.dim));
  const int dim = static_cast<int>(args.dim);
  NSA_ASSIGN_OR_RETURN(
      void* const workspace,
      WorkspaceOf(exec, RmsNormBackwardWorkspaceBytes(args.dim), "rms_norm_backward"));
  auto* partial = static_cast<float*>(workspace);
  const auto launch = [&](auto* kernel, const LaunchShape& shape, auto... more) {
    return Launch(exec, "rms_norm_backward", kernel, shape, DataOf<bf16>(args.dy),
                  DataOf<bf16>(args.x), DataOf<bf16>(args.weight), DataOf<float>(args.rstd),
                  DataOf<bf16>(args.dx), DataOf<bf16>(args.y), partial, args.rows, dim, more...);
  };
  const LaunchShape blocks{.grid = kBlocks, .block = kWarps * kWarp};
  switch (GridFor(dim, kWarp * 8)) {
    case 1:
      NSA_RETURN_IF_ERROR(launch(RmsNormBackwardKernel<1>, blocks));
      break;
    case 2:
      NSA_RETURN_IF_ERROR(launch(RmsNormBackwardKernel<2>, blocks));
      break;
    case 3:
      NSA_RETURN_IF_ERROR(launch(RmsNormBackwardKernel<3>, blocks));
      break;
    case kMostChunks:
      NSA_RETURN_IF_ERROR(launch(RmsNormBackwardKernel<kMostChunks>, blocks));
      break;
    default: {
      NSA_ASSIGN_OR_RETURN(const int32_t most, SharedBytesPerBlock());
      const int slice = WideSharedBytes(kWideSlice) <= most ? kWideSlice : kNarrowSlice;
      const LaunchShape slices{.grid = dim3(kBlocks, GridFor(dim, slice)),
                               .block = kWarps * kWarp,
                               .shared = WideSharedBytes(std::min(dim, slice))};
      NSA_RETURN_IF_ERROR(launch(RmsNormBackwardWideKernel, slices, slice));
    }
  }
  return Launch(exec, "rms_norm_backward", AddColumnSums<kBlocks>,
                {.grid = GridFor(dim, kWarp), .block = dim3(kWarp, kColumnSumParts)}, partial, dim,
                DataOf<float>(args.dweight));
}

}  // namespace nsa::cuda
