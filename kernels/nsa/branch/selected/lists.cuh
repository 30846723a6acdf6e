// Inverse lists of the choice: for every selection block the tokens that chose it, ascending. Built
// by a counting sort with a separate count for every (chunk of 32 tokens, block) pair, so that the
// order is fixed without atomics on the lists.
//
//   count:   32 tokens' choices become one bit mask per block; counts[chunk][block] = its bits
//   rank:    a running sum over the chunks of each block: where a chunk's tokens start in its list
//   offsets: a running sum over the blocks: where each block's list starts, and its segments
//   fill:    writes the entries
#pragma once

#include "kernels/cuda/begin.cuh"
#include "kernels/nsa/branch/attention_tile.cuh"

namespace nsa::cuda {

constexpr int kChunk = SelectedScratch::kChunk;  // tokens per chunk, one mask bit each

// A list entry: the token in the low 20 bits, and above them which of its n choices the block is.
constexpr int kTokenBits = 20;
__device__ __forceinline__ int TokenOf(int entry) { return entry & ((1 << kTokenBits) - 1); }
__device__ __forceinline__ int ChoiceOf(int entry) { return entry >> kTokenBits; }

// Device memory of the lists of all B·G (batch, group) pairs.
struct SelectedLists {
  int chunks;    // per sequence
  int capacity;  // entries per pair: S·n
  int segment;   // most tokens that one thread block of the key-major kernel processes
  int* counts;  // [B·G, chunks, S_sel]: first the bits of the chunk, then where the chunk starts in
                // the block's list
  int* sizes;   // [B·G, S_sel]: entries in the block's list
  int* begins;  // [B·G, S_sel]: where the block's list starts
  int* segments;  // [B·G, S_sel]: number of the block's first segment with partial sums, −1 when it
                  // has only one segment
  int* entries;  // [B·G, S·n]
};

// The choices of token t. Those of the next token are G·n ints further on.
__device__ __forceinline__ const int* ChoicesOf(const AttentionProblem& p, int bg, int t) {
  const int b = bg / p.groups, g = bg % p.groups;
  return p.blocks + ((int64_t{1} * b * p.seq_len + t) * p.groups + g) * p.n_sel;
}

// bits[j] ← mask of the chunk's tokens that chose block j. Ends with a barrier.
__device__ __forceinline__ void MarkChunk(const AttentionProblem& p, int bg, int chunk,
                                          uint32_t* bits) {
  const int t0 = chunk * kChunk, tokens = min(kChunk, p.seq_len - t0);
  const int* rows = ChoicesOf(p, bg, t0);
  for (int j = threadIdx.x; j < p.sel_blocks; j += blockDim.x) bits[j] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < tokens * p.n_sel; i += blockDim.x) {
    const int token = i / p.n_sel;
    const int block = rows[int64_t{1} * token * p.groups * p.n_sel + i % p.n_sel];
    if (block >= 0) atomicOr(&bits[block], 1u << token);
  }
  __syncthreads();
}

// Grid: chunks · B·G.
static __global__ void CountListsKernel(Begin begin, AttentionProblem p, SelectedLists lists) {
  extern __shared__ uint32_t bits[];
  begin.WaitForPrevious();
  const int chunk = blockIdx.x % lists.chunks, bg = blockIdx.x / lists.chunks;
  MarkChunk(p, bg, chunk, bits);
  int* counts = lists.counts + (int64_t{1} * bg * lists.chunks + chunk) * p.sel_blocks;
  for (int j = threadIdx.x; j < p.sel_blocks; j += blockDim.x) counts[j] = __popc(bits[j]);
}

constexpr int kRankSlices = 16;

// kRankSlices threads per selection block, each for a consecutive run of chunks. A thread first
// sums its run; then, with the sums of the runs before it, it computes where each of its chunks
// starts. Grid: ⌈S_sel / 32⌉ · B·G.
static __global__ void RankListsKernel(Begin start, AttentionProblem p, SelectedLists lists) {
  __shared__ int sums[kRankSlices][kWarp];
  start.WaitForPrevious();
  const int parts = CeilDiv(p.sel_blocks, kWarp);
  const int bg = blockIdx.x / parts;
  const int j = blockIdx.x % parts * kWarp + threadIdx.x;
  int* counts = lists.counts + int64_t{1} * bg * lists.chunks * p.sel_blocks + j;
  const int begin = lists.chunks * static_cast<int>(threadIdx.y) / kRankSlices;
  const int end = lists.chunks * static_cast<int>(threadIdx.y + 1) / kRankSlices;
  int sum = 0;
  if (j < p.sel_blocks) {
#pragma unroll 8
    for (int chunk = begin; chunk < end; ++chunk) {
      sum += counts[int64_t{1} * chunk * p.sel_blocks];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (j >= p.sel_blocks) return;
  int before = 0;
  for (int slice = 0; slice < static_cast<int>(threadIdx.y); ++slice) {
    before += sums[slice][threadIdx.x];
  }
  for (int chunk = begin; chunk < end; ++chunk) {
    const int count = counts[int64_t{1} * chunk * p.sel_blocks];
    counts[int64_t{1} * chunk * p.sel_blocks] = before;
    before += count;
  }
  if (threadIdx.y == kRankSlices - 1) lists.sizes[bg * p.sel_blocks + j] = before;
}

// One warp per (batch, group) pair.
static __global__ void OffsetListsKernel(Begin begin, AttentionProblem p, SelectedLists lists) {
  begin.WaitForPrevious();
  const int bg = blockIdx.x, lane = threadIdx.x;
  int list_before = 0, segments_before = 0;
  for (int base = 0; base < p.sel_blocks; base += kWarp) {
    const int j = base + lane;
    const int size = j < p.sel_blocks ? lists.sizes[bg * p.sel_blocks + j] : 0;
    const int segments = size > lists.segment ? CeilDiv(size, lists.segment) : 0;
    int list_sum = size, segment_sum = segments;
    for (int offset = 1; offset < kWarp; offset <<= 1) {
      const int other_list = __shfl_up_sync(0xffffffffu, list_sum, offset);
      const int other_segments = __shfl_up_sync(0xffffffffu, segment_sum, offset);
      if (lane >= offset) {
        list_sum += other_list;
        segment_sum += other_segments;
      }
    }
    if (j < p.sel_blocks) {
      lists.begins[bg * p.sel_blocks + j] = list_before + list_sum - size;
      lists.segments[bg * p.sel_blocks + j] =
          segments == 0 ? -1 : segments_before + segment_sum - segments;
    }
    list_before += __shfl_sync(0xffffffffu, list_sum, kWarp - 1);
    segments_before += __shfl_sync(0xffffffffu, segment_sum, kWarp - 1);
  }
}

// Grid: chunks · B·G.
static __global__ void FillListsKernel(Begin begin, AttentionProblem p, SelectedLists lists) {
  extern __shared__ uint32_t bits[];
  begin.WaitForPrevious();
  const int chunk = blockIdx.x % lists.chunks, bg = blockIdx.x / lists.chunks;
  MarkChunk(p, bg, chunk, bits);
  const int* starts = lists.counts + (int64_t{1} * bg * lists.chunks + chunk) * p.sel_blocks;
  const int* begins = lists.begins + bg * p.sel_blocks;
  int* entries = lists.entries + int64_t{1} * bg * lists.capacity;
  const int t0 = chunk * kChunk, tokens = min(kChunk, p.seq_len - t0);
  const int* rows = ChoicesOf(p, bg, t0);
  for (int i = threadIdx.x; i < tokens * p.n_sel; i += blockDim.x) {
    const int token = i / p.n_sel, choice = i % p.n_sel;
    const int block = rows[int64_t{1} * token * p.groups * p.n_sel + choice];
    if (block < 0) continue;
    const int before = __popc(bits[block] & ((1u << token) - 1));
    entries[begins[block] + starts[block] + before] = (choice << kTokenBits) | (t0 + token);
  }
}

}  // namespace nsa::cuda
