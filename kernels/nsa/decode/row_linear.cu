// One row times a matrix: a warp, or where rows are long a thread block, has a row of W, of which
// each lane reads 16 bytes at a time. The factor of RMSNorm is common to the whole sum, so x is
// read once and the sum scaled at the end.
#include "kernels/check.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/nn/rms_norm.h"
#include "kernels/nsa/decode/row_linear.h"

namespace nsa::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kBatch = 4;  // chunks of 16 bytes of W in flight in a lane

struct RowLinearProblem {
  int in, out;
  bool silu;
  const bf16* x;
  const bf16* norm;  // null unless kNorm
  const bf16* w;
  const bf16* add;  // may be null
  bf16* y;
};

// Brings the row to the L2 cache while the kernel in front still runs. It reads nothing: what the
// row holds is decided by the loads after the wait.
__device__ __forceinline__ void Prefetch(const bf16* w, int in) {
  constexpr int kLine = 64;  // elements in 128 bytes
  for (int c = static_cast<int>(threadIdx.x % kWarp) * kLine; c < in; c += kWarp * kLine) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(w + c)));
  }
}

// kSplit: warps of a row.
template <bool kNorm, int kSplit>
__global__ void __launch_bounds__(kWarps* kWarp)
    RowLinearKernel(Begin begin, const __grid_constant__ RowLinearProblem p) {
  __shared__ float dots[kWarps], squared[kWarps];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
  const int row = (static_cast<int>(blockIdx.x) * kWarps + warp) / kSplit;
  const bf16* const w = p.w + int64_t{min(row, p.out - 1)} * p.in;
  if (warp % kSplit == 0) Prefetch(w, p.in);
  begin.WaitForPrevious();
  constexpr int kStep = kSplit * kWarp * 8;
  float dot = 0, squares = 0;
  for (int base = (warp % kSplit * kWarp + lane) * 8; base < p.in; base += kBatch * kStep) {
    uint4 raw[kBatch], raw_x[kBatch], raw_norm[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int c = min(base + k * kStep, p.in - 8);
      raw[k] = LoadConst16(w + c);
      raw_x[k] = *reinterpret_cast<const uint4*>(p.x + c);
      if (kNorm) raw_norm[k] = *reinterpret_cast<const uint4*>(p.norm + c);
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (base + k * kStep >= p.in) break;
      const Float8 weight = AsFloats(raw[k]);
      Float8 x = AsFloats(raw_x[k]);
      if (kNorm) {
        const Float8 norm = AsFloats(raw_norm[k]);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          squares = fmaf(x.v[e], x.v[e], squares);
          x.v[e] *= norm.v[e];
        }
      }
#pragma unroll
      for (int e = 0; e < 8; ++e) dot = fmaf(weight.v[e], x.v[e], dot);
    }
  }
  dot = WarpSum(dot);
  if (kNorm) squares = WarpSum(squares);
  if (kSplit > 1) {
    static_assert(kSplit == 1 || kSplit == kWarps);
    if (lane == 0) dots[warp] = dot, squared[warp] = squares;
    __syncthreads();
    dot = squares = 0;
#pragma unroll
    for (int other = 0; other < kSplit; ++other) dot += dots[other], squares += squared[other];
  }
  if (lane != 0 || warp % kSplit != 0 || row >= p.out) return;
  float y = dot;
  if (kNorm) y *= rsqrtf(squares / static_cast<float>(p.in) + kRmsNormEps);
  if (p.silu) y /= 1.0f + __expf(-y);
  if (p.add != nullptr) y += __bfloat162float(p.add[row]);
  p.y[row] = __float2bfloat16(y);
}

absl::Status Check(const RowLinearArgs& args) {
  constexpr DType kType = DType::kBf16;
  NSA_RETURN_IF_ERROR(CheckMultipleOf8("row_linear", "in", args.in));
  NSA_RETURN_IF_ERROR(CheckTensor("x", args.x, args.in, kType, "in"));
  NSA_RETURN_IF_ERROR(CheckTensor("w", args.w, args.in * args.out, kType, "out·in"));
  NSA_RETURN_IF_ERROR(CheckTensor("y", args.y, args.out, kType, "out"));
  NSA_RETURN_IF_ERROR(CheckOptional("norm", args.norm, args.in, kType, "in"));
  return CheckOptional("add", args.add, args.out, kType, "out");
}

}  // namespace

absl::Status RowLinear(const Exec& exec, const RowLinearArgs& args) {
  NSA_RETURN_IF_ERROR(Check(args));
  const RowLinearProblem p{.in = static_cast<int>(args.in),
                           .out = static_cast<int>(args.out),
                           .silu = args.silu,
                           .x = DataOf<bf16>(args.x),
                           .norm = DataOf<bf16>(args.norm),
                           .w = DataOf<bf16>(args.w),
                           .add = DataOf<bf16>(args.add),
                           .y = DataOf<bf16>(args.y)};
  constexpr int kLong = 2048;  // a lane of a single warp would need several rounds of loads
  const bool split = p.in >= kLong;
  const LaunchShape shape{.grid = GridFor(args.out, split ? 1 : kWarps), .block = kWarps * kWarp};
  const auto launch = [&](auto kernel) { return Launch(exec, "row_linear", kernel, shape, p); };
  if (p.norm == nullptr) {
    return split ? launch(RowLinearKernel<false, kWarps>) : launch(RowLinearKernel<false, 1>);
  }
  return split ? launch(RowLinearKernel<true, kWarps>) : launch(RowLinearKernel<true, 1>);
}

}  // namespace nsa::cuda
