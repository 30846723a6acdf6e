// One row times a matrix: a warp has a row of W, of which each lane reads 16 bytes at a time. The
// factor of RMSNorm is common to the whole sum, so x is read once and the sum scaled at the end.
#include "absl/strings/str_cat.h"
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
  const bf16* norm;
  const bf16* w;
  const bf16* add;
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

absl::Status CheckSize(const char* name, const ConstTensor& tensor, int64_t size) {
  if (tensor.size == size && tensor.dtype == DType::kBf16) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("row_linear: ", name, ": ", tensor.size,
                                                 " elements (", size,
                                                 ", bf16); pass a tensor of the layer's shape"));
}

absl::Status Check(const RowLinearArgs& args) {
  NSA_RETURN_IF_ERROR(CheckMultipleOf8("row_linear", "in", args.in));
  NSA_RETURN_IF_ERROR(CheckSize("x", args.x, args.in));
  NSA_RETURN_IF_ERROR(CheckSize("w", args.w, args.in * args.out));
  NSA_RETURN_IF_ERROR(CheckSize("y", args.y, args.out));
  if (args.norm.wanted()) NSA_RETURN_IF_ERROR(CheckSize("norm", args.norm, args.in));
  return args.add.wanted() ? CheckSize("add", args.add, args.out) : absl::OkStatus();
}

}  // namespace

absl::Status RowLinear(const Exec& exec, const RowLinearArgs& args) {
  NSA_RETURN_IF_ERROR(Check(args));
  const RowLinearProblem p{.in = static_cast<int>(args.in),
                           .out = static_cast<int>(args.out),
                           .silu = args.silu,
                           .x = DataOf<bf16>(args.x),
                           .norm = args.norm.wanted() ? DataOf<bf16>(args.norm) : nullptr,
                           .w = DataOf<bf16>(args.w),
                           .add = args.add.wanted() ? DataOf<bf16>(args.add) : nullptr,
                           .y = DataOf<bf16>(args.y)};
  const LaunchShape shape{.grid = GridFor(args.out, kWarps), .block = kWarps * kWarp};
  return p.norm == nullptr ? Launch(exec, "row_linear", RowLinearKernel<false>, shape, p)
                           : Launch(exec, "row_linear", RowLinearKernel<true>, shape, p);
}

}  // namespace nsa::cuda
