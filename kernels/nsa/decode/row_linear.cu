// One row times a matrix: a warp has a row of W, of which each lane reads 16 bytes at a time. The
// factor of RMSNorm is common to the whole sum, so x is read once and the sum scaled at the end.
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

template <bool kNorm>
__global__ void __launch_bounds__(kWarps* kWarp)
    RowLinearKernel(Begin begin, const __grid_constant__ RowLinearProblem p) {
  begin.WaitForPrevious();
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (row >= p.out) return;
  const bf16* const w = p.w + int64_t{row} * p.in;
  float dot = 0, squares = 0;
  for (int base = lane * 8; base < p.in; base += kBatch * kWarp * 8) {
    uint4 raw[kBatch], raw_x[kBatch], raw_norm[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int c = min(base + k * kWarp * 8, p.in - 8);
      raw[k] = LoadConst16(w + c);
      raw_x[k] = *reinterpret_cast<const uint4*>(p.x + c);
      if (kNorm) raw_norm[k] = *reinterpret_cast<const uint4*>(p.norm + c);
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (base + k * kWarp * 8 >= p.in) break;
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
  float y = WarpSum(dot);
  if (kNorm) y *= rsqrtf(WarpSum(squares) / static_cast<float>(p.in) + kRmsNormEps);
  if (lane != 0) return;
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
  const LaunchShape shape{.grid = GridFor(args.out, kWarps), .block = kWarps * kWarp};
  return p.norm == nullptr ? Launch(exec, "row_linear", RowLinearKernel<false>, shape, p)
                           : Launch(exec, "row_linear", RowLinearKernel<true>, shape, p);
}

}  // namespace nsa::cuda
