// Backward of φ mlp on CUDA in three kernels. The first computes the gradient of the hidden units
// of every row. All that follows from it is done by the thread blocks of the second, which are
// independent of each other:
//
//   Σ_rows d_hidden ⊗ x_r and Σ_rows d_hidden    one for each token r of a block and range of rows
//   Σ_rows dy ⊗ silu(hidden) and Σ_rows dy       one for each range of rows
//   dx_t = Σ_i W1[:, t − i·d, :]ᵀ d_hidden_i     one for each tile of rows and each t mod d; over
//                                                the blocks i that cover t
//
// A column of ones beside the inputs yields the sums without them. The third kernel adds the ranges
// up in order, and computes from them
//
//   dW1[:, r, :] += Σ_rows d_hidden ⊗ (x_r + pe_r), dpe_r += W1[:, r, :]ᵀ Σ_rows d_hidden, db1,
//   dW2 and db2.
#include <algorithm>

#include "common/nsa/attention_scratch.h"
#include "kernels/nsa/compress/compress_mlp_gradients.cuh"

namespace nsa::cuda {
namespace {

// --- the hidden units ---

constexpr int kHiddenRows = 64, kHiddenThreads = kHiddenRows / 16 * kWarp;

template <int kWidth>
struct alignas(128) HiddenShared {
  bf16 dy[kHiddenRows * kWidth];
  bf16 w2[kWidth * kWidth];
};

// d_hidden = (dy·W2) ∘ silu'(hidden) and act = silu(hidden).
template <int kWidth>
__global__ void __launch_bounds__(kHiddenThreads)
    HiddenBackwardKernel(Begin begin, const __grid_constant__ PhiBackwardArgs args) {
  extern __shared__ __align__(128) uint8_t memory[];
  auto& shared = *reinterpret_cast<HiddenShared<kWidth>*>(memory);
  const PhiBackward& t = args.tensor[blockIdx.y];
  const int row0 = static_cast<int>(blockIdx.x) * kHiddenRows;
  const int rows = min(kHiddenRows, args.p.rows() - row0);
  const int row = threadIdx.x / kWarp * 16, lane = threadIdx.x % kWarp;
  begin.WaitForPrevious();
  CopyRows<kWidth>(shared.dy, t.dy + int64_t{row0} * kWidth, kWidth, rows);
  CopyRows<kWidth>(shared.w2, t.w2, kWidth, kWidth);
  CommitCopies();
  WaitCopies<0>();
  __syncthreads();
  // Rows of the tile after the last hold anything; only their own results depend on them.
  float d_act[kWidth / 8][4] = {};
#pragma unroll
  for (int step = 0; step < kWidth / 16; ++step) {
    uint32_t a[4];
    LoadA<kWidth>(a, shared.dy, row, step, lane);
#pragma unroll
    for (int pair = 0; pair < kWidth / 16; ++pair) {
      uint32_t b[4];
      LoadBByColumn<kWidth>(b, shared.w2, 16 * step, pair, lane);
      Mma(d_act[2 * pair], a, b[0], b[1]);
      Mma(d_act[2 * pair + 1], a, b[2], b[3]);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int in_tile = row + lane / 4 + 8 * half;
    if (in_tile >= rows) continue;
    const int64_t at = int64_t{row0 + in_tile} * kWidth + 2 * (lane & 3);
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
      const float2 h = LoadPair(t.hidden + at + n * 8);
      const float left = 1.0f / (1.0f + __expf(-h.x)), right = 1.0f / (1.0f + __expf(-h.y));
      StorePair(t.act + at + n * 8, h.x * left, h.y * right);
      StorePair(t.d_hidden + at + n * 8, d_act[n][2 * half] * left * (1 + h.x * (1 - left)),
                d_act[n][2 * half + 1] * right * (1 + h.y * (1 - right)));
    }
  }
}

// The first thread blocks, which run longest, add up rows.
template <int kWidth>
__global__ void __launch_bounds__(kGradientThreads<kWidth>)
    GradientsKernel(Begin begin, const __grid_constant__ PhiBackwardArgs args) {
  extern __shared__ __align__(128) uint8_t memory[];
  const CompressProblem& p = args.p;
  const PhiBackward& t = args.tensor[blockIdx.y];
  const int item = static_cast<int>(blockIdx.x), sums = (p.l + 1) * args.ranges;
  begin.WaitForPrevious();
  if (item < sums) {
    SumRange(args, t, item % (p.l + 1), item / (p.l + 1),
             *reinterpret_cast<SumShared<kWidth>*>(memory));
  } else {
    InputGradient(p, t, (item - sums) / p.d, (item - sums) % p.d,
                  *reinterpret_cast<InputShared<kWidth>*>(memory));
  }
}

// --- gradients of the parameters ---

constexpr int kParameterThreads = 256;

// Thread blocks of a token: each has four sums of every thread, and one more the sums over units.
template <int kWidth>
constexpr int kParameterParts = std::max(1, kWidth* kWidth / (4 * kParameterThreads));

// Threads that share the units of a column.
template <int kWidth>
constexpr int kUnitShares = std::min(kParameterThreads / kWidth, kWidth);

// Four neighbouring sums, or one, added over the ranges.
__device__ __forceinline__ float4 AddRanges4(const float* sums, int64_t step, int ranges) {
  float4 total{};
#pragma unroll 8
  for (int range = 0; range < ranges; ++range) {
    const float4 add = __ldcg(reinterpret_cast<const float4*>(sums + range * step));
    total.x += add.x, total.y += add.y, total.z += add.z, total.w += add.w;
  }
  return total;
}
__device__ __forceinline__ float AddRanges(const float* sums, int64_t step, int ranges) {
  float total = 0;
#pragma unroll 8
  for (int range = 0; range < ranges; ++range) total += __ldcg(sums + range * step);
  return total;
}

// The four elements from `i` on of a token's part of dW1, or of dW2 where r = l.
template <int kWidth>
__device__ __forceinline__ void AddWeights(const PhiBackwardArgs& args, const PhiBackward& t, int r,
                                           int i) {
  const CompressProblem& p = args.p;
  const int64_t step = int64_t{p.l + 1} * kSumSize<kWidth>;
  const float* const sums = t.sums + int64_t{r} * kSumSize<kWidth>;
  const int unit = i / kWidth, c = i % kWidth;
  const bool input_layer = r < p.l;
  auto* const at =
      reinterpret_cast<float4*>(input_layer ? t.d_w1 + unit * p.in() + r * kWidth + c : t.d_w2 + i);
  const float4 before = *at;
  float4 add = AddRanges4(sums + i, step, args.ranges);
  if (input_layer) {
    const float units = AddRanges(sums + kWidth * kWidth + unit, step, args.ranges);
    const float2 left = LoadPair(t.pe + r * kWidth + c),
                 right = LoadPair(t.pe + r * kWidth + c + 2);
    add.x = fmaf(units, left.x, add.x), add.y = fmaf(units, left.y, add.y);
    add.z = fmaf(units, right.x, add.z), add.w = fmaf(units, right.y, add.w);
  }
  *at = {before.x + add.x, before.y + add.y, before.z + add.z, before.w + add.w};
}

// The biases, and d_pe[c] += Σ_units units[unit] · W1[unit, r, c] of token r of a block.
template <int kWidth>
__device__ __forceinline__ void AddUnits(const PhiBackwardArgs& args, const PhiBackward& t, int r) {
  constexpr int kShares = kUnitShares<kWidth>;
  __shared__ float units[kWidth], shares[kShares][kWidth];
  const CompressProblem& p = args.p;
  const int64_t step = int64_t{p.l + 1} * kSumSize<kWidth>;
  const int c = threadIdx.x % kWidth, share = threadIdx.x / kWidth;
  if (share == 0) {
    units[c] =
        AddRanges(t.sums + int64_t{r} * kSumSize<kWidth> + kWidth * kWidth + c, step, args.ranges);
    if (r == p.l) t.d_b2[c] += units[c];
    if (r == 0) t.d_b1[c] += units[c];
  }
  if (r == p.l) return;
  __syncthreads();
  if (share < kShares) {
    float total = 0;
#pragma unroll
    for (int i = 0; i < kWidth / kShares; ++i) {
      const int unit = share * (kWidth / kShares) + i;
      total = fmaf(units[unit], __bfloat162float(t.w1[unit * p.in() + r * kWidth + c]), total);
    }
    shares[share][c] = total;
  }
  __syncthreads();
  if (share > 0) return;
  float total = t.d_pe[r * kWidth + c];
#pragma unroll
  for (int i = 0; i < kShares; ++i) total += shares[i][c];
  t.d_pe[r * kWidth + c] = total;
}

// Thread blocks [r, part] have the parameters of token r of a block, those of the last r the output
// layer's.
template <int kWidth>
__global__ void __launch_bounds__(kParameterThreads)
    ParametersKernel(Begin begin, const __grid_constant__ PhiBackwardArgs args) {
  constexpr int kParts = kParameterParts<kWidth>;
  const PhiBackward& t = args.tensor[blockIdx.y];
  const int r = static_cast<int>(blockIdx.x) / (kParts + 1);
  const int part = static_cast<int>(blockIdx.x) % (kParts + 1);
  begin.WaitForPrevious();
  if (part == kParts) {
    AddUnits<kWidth>(args, t, r);
  } else if (const int i = (part * kParameterThreads + threadIdx.x) * 4; i < kWidth * kWidth) {
    AddWeights<kWidth>(args, t, r, i);
  }
}

template <int kWidth>
absl::Status LaunchBackward(const Exec& exec, const PhiBackwardArgs& args, size_t tensors) {
  constexpr const char* kWhat = "compress_backward";
  const CompressProblem& p = args.p;
  const auto both = static_cast<unsigned int>(tensors);
  static_assert(sizeof(HiddenShared<kWidth>) <= kSharedOfA100);
  NSA_RETURN_IF_ERROR(Launch(exec, kWhat, HiddenBackwardKernel<kWidth>,
                             {.grid = dim3(GridFor(p.rows(), kHiddenRows), both),
                              .block = kHiddenThreads,
                              .shared = sizeof(HiddenShared<kWidth>)},
                             args));
  const int64_t input_rows = int64_t{p.batch} * CeilDiv(p.seq_len, p.d) * p.groups;
  const int64_t items = (p.l + 1) * args.ranges + int64_t{GridFor(input_rows, kWidth)} * p.d;
  constexpr int kShared = std::max(sizeof(SumShared<kWidth>), sizeof(InputShared<kWidth>));
  static_assert(kShared <= kSharedOfA100);
  NSA_RETURN_IF_ERROR(Launch(exec, kWhat, GradientsKernel<kWidth>,
                             {.grid = dim3(static_cast<unsigned int>(items), both),
                              .block = kGradientThreads<kWidth>,
                              .shared = kShared},
                             args));
  return Launch(
      exec, kWhat, ParametersKernel<kWidth>,
      {.grid = dim3(static_cast<unsigned int>((p.l + 1) * (kParameterParts<kWidth> + 1)), both),
       .block = kParameterThreads},
      args);
}

PhiBackward Pointers(const CompressBackwardArgs& t, const PhiScratch& plan, uint8_t* scratch) {
  return {DataOf<bf16>(t.x),          DataOf<bf16>(t.params.pe),
          DataOf<bf16>(t.params.w1),  DataOf<bf16>(t.params.w2),
          DataOf<bf16>(t.hidden),     DataOf<bf16>(t.dy),
          DataOf<bf16>(t.d_hidden),   reinterpret_cast<bf16*>(scratch + plan.act),
          DataOf<bf16>(t.dx),         reinterpret_cast<float*>(scratch + plan.sums),
          DataOf<float>(t.grads.pe),  DataOf<float>(t.grads.w1),
          DataOf<float>(t.grads.b1),  DataOf<float>(t.grads.w2),
          DataOf<float>(t.grads.b2),  InputStride(t),
          DataOf<float2>(t.dx_angles)};
}

}  // namespace

absl::Status CompressMlpBackward(const Exec& exec, std::span<const CompressBackwardArgs> tensors) {
  const CompressBackwardArgs& first = tensors[0];
  const PhiScratch plan = PlanPhiScratch(first.shape, first.width);
  NSA_ASSIGN_OR_RETURN(
      void* const workspace,
      WorkspaceOf(exec, plan.bytes * static_cast<int64_t>(tensors.size()), "compress_backward"));
  PhiBackwardArgs args{ProblemOf(first.shape, first.width), plan.ranges, {}};
  for (size_t i = 0; i < tensors.size(); ++i) {
    args.tensor[i] = Pointers(
        tensors[i], plan, static_cast<uint8_t*>(workspace) + plan.bytes * static_cast<int64_t>(i));
  }
  return ForWidth(args.p.width,
                  [&](auto width) { return LaunchBackward<width>(exec, args, tensors.size()); });
}

}  // namespace nsa::cuda
