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

// Four neighbouring sums, or one, added over the ranges.
__device__ __forceinline__ float4 AddRanges4(const float* sums, int64_t step, int ranges) {
  float4 total{};
#pragma unroll 4
  for (int range = 0; range < ranges; ++range) {
    const float4 add = __ldcg(reinterpret_cast<const float4*>(sums + range * step));
    total.x += add.x, total.y += add.y, total.z += add.z, total.w += add.w;
  }
  return total;
}
__device__ __forceinline__ float AddRanges(const float* sums, int64_t step, int ranges) {
  float total = 0;
#pragma unroll 4
  for (int range = 0; range < ranges; ++range) total += __ldcg(sums + range * step);
  return total;
}

// d_pe[c] += Σ_units units[unit] · W1[unit, r, c], by the first kWidth threads.
template <int kWidth>
__device__ __forceinline__ void AddPositions(const float* units, const bf16* w1, int in,
                                             float* d_pe) {
  const int c = threadIdx.x;
  if (c >= kWidth) return;
  float total = 0;
#pragma unroll 16
  for (int unit = 0; unit < kWidth; ++unit) {
    total = fmaf(units[unit], __bfloat162float(w1[unit * in + c]), total);
  }
  d_pe[c] += total;
}

// Thread block r has the parameters of token r of a block, the last one those of the output layer.
template <int kWidth>
__global__ void __launch_bounds__(kParameterThreads)
    ParametersKernel(Begin begin, const __grid_constant__ PhiBackwardArgs args) {
  __shared__ float units[kWidth];
  const CompressProblem& p = args.p;
  const PhiBackward& t = args.tensor[blockIdx.y];
  const int r = static_cast<int>(blockIdx.x);
  const bool input_layer = r < p.l;
  const int64_t step = int64_t{p.l + 1} * kSumSize<kWidth>;
  const float* const sums = t.sums + int64_t{r} * kSumSize<kWidth>;
  begin.WaitForPrevious();
  if (threadIdx.x < kWidth) {
    units[threadIdx.x] = AddRanges(sums + kWidth * kWidth + threadIdx.x, step, args.ranges);
  }
  __syncthreads();
  float* const out = input_layer ? t.d_w1 + r * kWidth : t.d_w2;
  for (int i = threadIdx.x * 4; i < kWidth * kWidth; i += kParameterThreads * 4) {
    const int unit = i / kWidth, c = i % kWidth;
    float4 add = AddRanges4(sums + i, step, args.ranges);
    if (input_layer) {
      const float2 left = LoadPair(t.pe + r * kWidth + c),
                   right = LoadPair(t.pe + r * kWidth + c + 2);
      add.x = fmaf(units[unit], left.x, add.x), add.y = fmaf(units[unit], left.y, add.y);
      add.z = fmaf(units[unit], right.x, add.z), add.w = fmaf(units[unit], right.y, add.w);
    }
    auto* const at = reinterpret_cast<float4*>(out + unit * (input_layer ? p.in() : kWidth) + c);
    const float4 before = *at;
    *at = {before.x + add.x, before.y + add.y, before.z + add.z, before.w + add.w};
  }
  if (input_layer) AddPositions<kWidth>(units, t.w1 + r * kWidth, p.in(), t.d_pe + r * kWidth);
  float* const bias = input_layer ? t.d_b1 : t.d_b2;
  if ((r == 0 || !input_layer) && threadIdx.x < kWidth) bias[threadIdx.x] += units[threadIdx.x];
}

template <int kWidth>
absl::Status LaunchBackward(const Exec& exec, const PhiBackwardArgs& args, size_t tensors) {
  constexpr const char* kWhat = "compress_backward";
  const CompressProblem& p = args.p;
  const auto both = static_cast<unsigned int>(tensors);
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
      {.grid = dim3(static_cast<unsigned int>(p.l + 1), both), .block = kParameterThreads}, args);
}

PhiBackward Pointers(const CompressBackwardArgs& t, const PhiScratch& plan, uint8_t* scratch) {
  return {DataOf<bf16>(t.x),         DataOf<bf16>(t.params.pe),
          DataOf<bf16>(t.params.w1), DataOf<bf16>(t.params.w2),
          DataOf<bf16>(t.hidden),    DataOf<bf16>(t.dy),
          DataOf<bf16>(t.d_hidden),  reinterpret_cast<bf16*>(scratch + plan.act),
          DataOf<bf16>(t.dx),        reinterpret_cast<float*>(scratch + plan.sums),
          DataOf<float>(t.grads.pe), DataOf<float>(t.grads.w1),
          DataOf<float>(t.grads.b1), DataOf<float>(t.grads.w2),
          DataOf<float>(t.grads.b2)};
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
