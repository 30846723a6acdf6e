// The last step of the selected branch by key block: adds the partial results of each row in the
// order of its choices.
#pragma once

#include "kernels/nsa/branch/attention_launch.cuh"
#include "kernels/nsa/branch/selected/items.cuh"

namespace nsa::cuda {

// Columns of a partial result: those of dq, or of the output.
template <int kD, bool kGradient>
constexpr int kPartialWidth = kGradient ? kD : kDv<kD>;

// The columns of partial rows stand in the order of a thread's accumulators, so that a thread
// writes 16 bytes at a time (8 where rows are 16 wide) and the four threads of a row 64. Chunk 4j +
// c of a row has columns 8·(kTiles·j + i) + 2c and the one after it, for i = 0 … kTiles − 1.
template <int kWidth>
struct PartialChunk {
  static constexpr int kTiles = kWidth > 16 ? 4 : 2;
  static constexpr int kColumns = 2 * kTiles;
  static constexpr int kOfRow = kWidth / kColumns;  // chunks
  using Packed = std::conditional_t<kTiles == 4, uint4, uint2>;
};

// The partial results that one thread of CombineByKeyKernel adds: a chunk of a row.
template <int kWidth>
struct PartialColumns {
  using Chunk = PartialChunk<kWidth>;

  int chunk;
  int b, t, head, g;
  int64_t row;       // of [B, S, H]
  int partials;      // number of partial results
  const bf16* rows;  // the chunk of the first one
  const float2* sums;
  int h;  // rows and sums from one to the next

  // total += factor times the i-th partial result.
  __device__ __forceinline__ void Add(int i, float factor, float2 (&total)[Chunk::kTiles]) const {
    const auto* from =
        reinterpret_cast<const typename Chunk::Packed*>(rows + int64_t{1} * i * h * kWidth);
    const typename Chunk::Packed packed = __ldcs(from);
    const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&packed);
#pragma unroll
    for (int tile = 0; tile < Chunk::kTiles; ++tile) {
      const float2 term = __bfloat1622float2(pairs[tile]);
      total[tile].x = fmaf(factor, term.x, total[tile].x);
      total[tile].y = fmaf(factor, term.y, total[tile].y);
    }
  }

  // Calls use(column, value) for each two of the columns that rows of `width` have.
  template <class Use>
  __device__ __forceinline__ void Each(int width, const float2 (&total)[Chunk::kTiles],
                                       Use use) const {
#pragma unroll
    for (int tile = 0; tile < Chunk::kTiles; ++tile) {
      const int column = 8 * (chunk / 4 * Chunk::kTiles + tile) + 2 * (chunk % 4);
      if (column >= width) continue;
      use(column, total[tile]);
    }
  }
};

// Sets `part` to the work of this thread: a thread block has one token, and blockIdx.y which of its
// (head, chunk) pairs. False if there is none.
template <int kWidth>
__device__ __forceinline__ bool FindColumns(const AttentionProblem& p, const ByKey& work, int range,
                                            PartialColumns<kWidth>* part) {
  constexpr int kLanes = PartialChunk<kWidth>::kOfRow;
  const int pair = blockIdx.y * blockDim.x + threadIdx.x, head = pair / kLanes;
  if (head >= p.heads) return false;
  part->chunk = pair % kLanes;
  const int t0 = range * work.tokens(), tokens = min(work.tokens(), p.seq_len - t0);
  const int b = blockIdx.x / tokens, token = blockIdx.x - b * tokens, t = t0 + token;
  const int g = head / p.h;
  part->b = b, part->t = t, part->head = head, part->g = g;
  part->row = (int64_t{1} * b * p.seq_len + t) * p.heads + head;
  const int* choices = p.blocks + ((int64_t{1} * b * p.seq_len + t) * p.groups + g) * p.n_sel;
  // Parts of a block that begin after t have no partial result.
  int last = p.n_sel - 1;
  while (last > 0 && choices[last] < 0) --last;
  part->partials =
      choices[last] < 0
          ? 0
          : last * work.parts + min(work.parts, (t - choices[last] * p.l_sel) / kKeyTile + 1);
  const int64_t first = FirstPartialRow(p, work, b, g, token) + head - g * p.h;
  part->rows = work.rows + first * kWidth + part->chunk * PartialChunk<kWidth>::kColumns;
  part->sums = work.sums + first;
  part->h = p.h;
  return true;
}

// dq of the chunk: the sum of the terms.
template <int kWidth>
__device__ __forceinline__ void CombineDq(const PartialColumns<kWidth>& part,
                                          const AttentionProblem& p,
                                          const AttentionGradients& grad) {
  float2 total[PartialChunk<kWidth>::kTiles] = {};
#pragma unroll 8
  for (int i = 0; i < part.partials; ++i) part.Add(i, 1, total);
  const DqRow out(p, grad, part.b, part.t, part.head, part.g);
  part.Each(p.dk, total, [&](int column, float2 value) { out.Store(column, value, p.scale); });
}

// The output's chunk: the terms relative to one maximum, divided by the sum of the weights.
template <int kWidth>
__device__ __forceinline__ void CombineOutputs(const PartialColumns<kWidth>& part,
                                               const AttentionProblem& p,
                                               const AttentionOutputs& out) {
  float top = -INFINITY;
#pragma unroll 8
  for (int i = 0; i < part.partials; ++i) top = fmaxf(top, part.sums[i * part.h].x);
  const float reference = top == -INFINITY ? 0.0f : top;
  float sum = 0;
  float2 total[PartialChunk<kWidth>::kTiles] = {};
#pragma unroll 8
  for (int i = 0; i < part.partials; ++i) {
    const float2 weight = part.sums[i * part.h];
    const float factor = Exp2(weight.x - reference);
    sum = fmaf(factor, weight.y, sum);
    part.Add(i, factor, total);
  }
  const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
  part.Each(p.dv, total, [&](int column, float2 value) {
    *reinterpret_cast<__nv_bfloat162*>(out.o + part.row * p.dv + column) =
        __floats2bfloat162_rn(value.x * inverse, value.y * inverse);
  });
  if (part.chunk == 0) out.lse[part.row] = sum > 0 ? (top + log2f(sum)) * kLn2 : INFINITY;
}

// Adds the partial results of a range's rows, one chunk per thread. Grid: B · tokens of the range,
// then as many thread blocks as the (head, chunk) pairs of a token need.
template <int kWidth, bool kGradient>
__global__ void CombineByKeyKernel(Begin begin, AttentionProblem p, AttentionOutputs out,
                                   AttentionGradients grad, ByKey work, int range) {
  begin.WaitForPrevious();
  PartialColumns<kWidth> part;
  if (!FindColumns(p, work, range, &part)) return;
  if constexpr (kGradient) {
    CombineDq(part, p, grad);
  } else {
    CombineOutputs(part, p, out);
  }
}

template <int kWidth, bool kGradient>
absl::Status LaunchCombine(const Exec& exec, const AttentionProblem& p, const AttentionOutputs& out,
                           const AttentionGradients& grad, const ByKey& work, int range,
                           const char* what) {
  const int tokens = std::min(work.tokens(), p.seq_len - range * work.tokens());
  const int pairs = p.heads * PartialChunk<kWidth>::kOfRow;
  const int threads = RoundUp(std::min(pairs, 256), kWarp);
  const dim3 grid(p.batch * tokens, CeilDiv(pairs, threads));
  return Launch(exec, what, CombineByKeyKernel<kWidth, kGradient>,
                {.grid = grid, .block = Blocks(threads), .next_may_start = false}, p, out, grad,
                work, range);
}

// Enqueues the plan of all ranges' items. The lists must have been built.
inline absl::Status PlanItems(const Exec& exec, const AttentionProblem& p,
                              const SelectedLists& lists, const ByKey& work, const char* what) {
  return Launch(exec, what, PlanItemsKernel,
                {.grid = Blocks(work.ranges * p.batch * p.groups), .block = kWarp}, p, lists, work);
}

}  // namespace nsa::cuda
