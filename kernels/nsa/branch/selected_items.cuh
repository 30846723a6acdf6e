// How forward and dq by key block (selected_by_key.cuh) divide their work, and where the partial
// results of a row are.
#pragma once

#include "kernels/nsa/branch/selected_lists.cuh"

namespace nsa::cuda {

// How the work is divided, and the device memory for it. An item is a segment of the tokens that
// chose a block within a range of tokens.
struct ByKey {
  int chunks;    // of kChunk tokens, per range
  int ranges;    // per sequence
  int parts;     // 64-key parts per block
  int capacity;  // most items of a (range, batch, group)
  int* counts;   // [ranges, B·G]: number of items
  int4* items;   // [ranges, B·G, capacity]: block, its part of the (batch, group)'s list entries:
                 // the first and how many, 0
  bf16* rows;    // [B, tokens of a range, G, n · parts, h, max(dk, dv)]: partial results; order of
                 // the columns: PartialChunk
  float2* sums;  // [B, tokens of a range, G, n · parts, h]: maximum (log2 units) and sum; forward
                 // only

  __host__ __device__ int tokens() const { return chunks * kChunk; }
};

constexpr int kItemTokens = SelectedScratch::kItemTokens;  // most tokens of an item

// The entries [x, y) of a block's list whose tokens are within a range.
__device__ __forceinline__ int2 EntriesOf(const AttentionProblem& p, const SelectedLists& lists,
                                          const ByKey& work, int range, int bg, int block) {
  const int* starts = lists.counts + int64_t{1} * bg * lists.chunks * p.sel_blocks + block;
  const int first = range * work.chunks, last = first + work.chunks;
  return {starts[int64_t{1} * first * p.sel_blocks], last < lists.chunks
                                                         ? starts[int64_t{1} * last * p.sel_blocks]
                                                         : lists.sizes[bg * p.sel_blocks + block]};
}

// Lists the items of every range: one warp per (range, batch, group).
static __global__ void PlanItemsKernel(AttentionProblem p, SelectedLists lists, ByKey work) {
  const int pairs = p.batch * p.groups, lane = threadIdx.x;
  const int range = blockIdx.x / pairs, bg = blockIdx.x % pairs;
  int4* items = work.items + int64_t{1} * blockIdx.x * work.capacity;
  int before = 0;
  for (int base = 0; base < p.sel_blocks; base += kWarp) {
    const int block = base + lane;
    int2 entries = {0, 0};
    if (block < p.sel_blocks) entries = EntriesOf(p, lists, work, range, bg, block);
    const int count = CeilDiv(entries.y - entries.x, kItemTokens);
    int sum = count;
    for (int offset = 1; offset < kWarp; offset <<= 1) {
      const int other = __shfl_up_sync(0xffffffffu, sum, offset);
      if (lane >= offset) sum += other;
    }
    for (int i = 0; i < count; ++i) {
      const int first = entries.x + i * kItemTokens;
      items[before + sum - count + i] = {block, lists.begins[bg * p.sel_blocks + block] + first,
                                         min(kItemTokens, entries.y - first), 0};
    }
    before += __shfl_sync(0xffffffffu, sum, kWarp - 1);
  }
  if (lane == 0) work.counts[blockIdx.x] = before;
}

// The partial row of head 0, choice 0, part 0 of a (token, group) pair.
__device__ __forceinline__ int64_t FirstPartialRow(const AttentionProblem& p, const ByKey& work,
                                                   int b, int g, int token_in_range) {
  return ((int64_t{1} * b * work.tokens() + token_in_range) * p.groups + g) * p.n_sel * work.parts *
         p.h;
}

}  // namespace nsa::cuda
