// How the kernels by key block (selected/by_key.cuh, selected/one_pass.cuh) divide their work, and
// where the partial results of a row are.
#pragma once

#include "kernels/nsa/branch/selected/lists.cuh"

namespace nsa::cuda {

// How the work is divided, and the device memory for it. An item is a segment of the tokens that
// chose a block within a range of tokens.
struct ByKey {
  int chunks;     // of kChunk tokens, per range
  int ranges;     // per sequence
  int parts;      // 64-key parts per block
  int capacity;   // most items of a (range, batch, group)
  int splits;     // most blocks with several items of a (range, batch, group)
  int slots;      // most items of these blocks
  int2* counts;   // [ranges, B·G]: number of items, of blocks with several items
  int4* items;    // [ranges, B·G, capacity]: block, its part of the (batch, group)'s list entries:
                  // the first and how many, ItemSums
  int4* several;  // [ranges, B·G, splits], blocks with several items: block, slot of the first
                  // item, number of items, ItemSums
  bf16* rows;  // [B, tokens of a range, G, n · parts, h, kPartialWidth]: partial results; order of
               // the columns: PartialChunk
  float2* sums;  // [B, tokens of a range, G, n · parts, h]: maximum (log2 units) and sum; forward
                 // only
  float* key_sums;  // fp32 [B·G, S_sel, parts, 64, 2·max(dk, dv)]: dk and dv of the ranges so far
  float* item_sums;  // fp32 [B·G, slots, parts, 64, 2·max(dk, dv)]: dk and dv of an item

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

// Where the sums of dk and dv of an item start and where they go. The ranges of tokens are
// processed one after the other, so the sums of a block continue from one range to the next. A
// block with several items in a range has one sum for each of them, in a slot of its own.
struct ItemSums {
  int bits;

  __device__ __forceinline__ static int Of(bool continues, bool goes_on, int slot) {
    return (continues ? 1 : 0) | (goes_on ? 2 : 0) | ((slot + 1) << 2);
  }
  // The sums start from those of earlier ranges, not from 0.
  __device__ __forceinline__ bool continues() const { return (bits & 1) != 0; }
  // The block has entries in later ranges, so its gradients are not complete yet.
  __device__ __forceinline__ bool goes_on() const { return (bits & 2) != 0; }
  // −1 if the block has one item.
  __device__ __forceinline__ int slot() const { return (bits >> 2) - 1; }
};

// Running sums over the lanes of a warp, which continue from call to call.
struct WarpCounter {
  int total = 0;

  // The sum before this lane's value.
  __device__ __forceinline__ int Add(int value, int lane) {
    int sum = value;
    for (int offset = 1; offset < kWarp; offset <<= 1) {
      const int other = __shfl_up_sync(0xffffffffu, sum, offset);
      if (lane >= offset) sum += other;
    }
    const int before = total + sum - value;
    total += __shfl_sync(0xffffffffu, sum, kWarp - 1);
    return before;
  }
};

// Lists the items of every range: one warp per (range, batch, group). A block that no token chose
// has an item without entries in the first range, so that its gradients are written. The blocks
// with the most entries of a range come first: block 0, then the last ones down to block 1, since
// every token chooses its own block and the one before.
static __global__ void PlanItemsKernel(Begin begin, AttentionProblem p, SelectedLists lists,
                                       ByKey work) {
  begin.WaitForPrevious();
  const int pairs = p.batch * p.groups, lane = threadIdx.x;
  const int range = blockIdx.x / pairs, bg = blockIdx.x % pairs;
  int4* items = work.items + int64_t{1} * blockIdx.x * work.capacity;
  int4* several = work.several + int64_t{1} * blockIdx.x * work.splits;
  WarpCounter item_counter, slot_counter, split_counter;
  for (int base = 0; base < p.sel_blocks; base += kWarp) {
    const int place = base + lane, block = place == 0 ? 0 : p.sel_blocks - place;
    const int list = bg * p.sel_blocks + block;
    int2 entries = {0, 0};
    int size = 0, count = 0;
    if (place < p.sel_blocks) {
      entries = EntriesOf(p, lists, work, range, bg, block);
      size = lists.sizes[list];
      count = max(CeilDiv(entries.y - entries.x, kItemTokens), range == 0 && size == 0 ? 1 : 0);
    }
    const bool split = count > 1, continues = entries.x > 0, goes_on = entries.y < size;
    const int item = item_counter.Add(count, lane);
    const int slot = slot_counter.Add(split ? count : 0, lane);
    const int number = split_counter.Add(split ? 1 : 0, lane);
    for (int i = 0; i < count; ++i) {
      const int first = entries.x + i * kItemTokens;
      items[item + i] = {block, lists.begins[list] + first, min(kItemTokens, entries.y - first),
                         ItemSums::Of(continues && i == 0, goes_on, split ? slot + i : -1)};
    }
    if (split) several[number] = {block, slot, count, ItemSums::Of(continues, goes_on, slot)};
  }
  if (lane == 0) work.counts[blockIdx.x] = {item_counter.total, split_counter.total};
}

// The partial row of head 0, choice 0, part 0 of a (token, group) pair.
__device__ __forceinline__ int64_t FirstPartialRow(const AttentionProblem& p, const ByKey& work,
                                                   int b, int g, int token_in_range) {
  return ((int64_t{1} * b * work.tokens() + token_in_range) * p.groups + g) * p.n_sel * work.parts *
         p.h;
}

}  // namespace nsa::cuda
