// One row times a matrix: a warp, or where rows are long a thread block, has a row of W.
#include "kernels/check.h"
#include "kernels/nsa/decode/row_dot.cuh"
#include "kernels/nsa/decode/row_linear.h"

namespace nsa::cuda {
namespace {

struct RowLinearProblem {
  int in, out;
  bool silu, relu2;
  float eps;  // of the norm
  const bf16* x;
  const bf16* norm;  // null unless kNorm
  const bf16* w;
  const bf16* add;  // may be null
  bf16* y;
};

// kSplit: warps of a row.
template <bool kNorm, int kSplit>
__global__ void __launch_bounds__(kRowWarps* kWarp)
    RowLinearKernel(Begin begin, const __grid_constant__ RowLinearProblem p) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int row = (static_cast<int>(blockIdx.x) * kRowWarps + warp) / kSplit;
  const bf16* const w = p.w + int64_t{min(row, p.out - 1)} * p.in;
  if (warp % kSplit == 0) PrefetchRow(w, p.in);
  begin.WaitForPrevious();
  float y = RowDot<kNorm, kSplit>(w, p.x, p.norm, p.in, p.eps);
  if (threadIdx.x % kWarp != 0 || warp % kSplit != 0 || row >= p.out) return;
  if (p.silu) y /= 1.0f + __expf(-y);
  if (p.relu2) y = y < 0 ? 0.0f : y * y;
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
                           .silu = args.activation == Activation::kSilu,
                           .relu2 = args.activation == Activation::kRelu2,
                           .eps = args.eps,
                           .x = DataOf<bf16>(args.x),
                           .norm = DataOf<bf16>(args.norm),
                           .w = DataOf<bf16>(args.w),
                           .add = DataOf<bf16>(args.add),
                           .y = DataOf<bf16>(args.y)};
  const bool split = p.in >= kLongRow;
  const LaunchShape shape{.grid = GridFor(args.out, split ? 1 : kRowWarps),
                          .block = kRowWarps * kWarp};
  const auto launch = [&](auto kernel) { return Launch(exec, "row_linear", kernel, shape, p); };
  if (p.norm == nullptr) {
    return split ? launch(RowLinearKernel<false, kRowWarps>) : launch(RowLinearKernel<false, 1>);
  }
  return split ? launch(RowLinearKernel<true, kRowWarps>) : launch(RowLinearKernel<true, 1>);
}

}  // namespace nsa::cuda
