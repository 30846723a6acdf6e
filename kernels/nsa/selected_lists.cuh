// Inverse lists of the choice: for every selection block the tokens that chose it, ascending. A
// counting sort with a slot of its own for every (32 tokens, block) pair, so that the order is
// fixed without atomics on the lists.
//
//   mark    32 tokens' choices become a bit mask a block; counts[chunk][block] = its bits
//   rank    a running sum over the chunks of each block: where a chunk's tokens start in the
//   block's list offsets a running sum over the blocks: where each block's list starts, and its
//   segments fill    writes the tokens
#pragma once

#include "kernels/nsa/attention_tile.cuh"

namespace nsa::cuda {

constexpr int kChunk = 32;  // tokens of a chunk

// Device memory of the lists of all B·G (batch, group) pairs.
struct SelectedLists {
  int chunks;    // of a sequence
  int capacity;  // entries of a pair's list: S·n
  int segment;   // tokens that one block of the key-major kernel walks at most
  int* counts;  // [B·G, chunks, S_sel]: first the bits of the chunk, then where the chunk starts in
                // the block's list
  int* sizes;   // [B·G, S_sel]
  int* begins;  // [B·G, S_sel]: where the block's list starts
  int* segments;  // [B·G, S_sel]: number of the block's first segment with partial sums, −1 when it
                  // has only one segment
  int* tokens;  // [B·G, S·n]
};

__device__ __forceinline__ void MarkChunk(const AttentionProblem& p, int bg, int chunk,
                                          uint32_t* bits) {
  const int b = bg / p.groups, g = bg % p.groups;
  const int t0 = chunk * kChunk, tokens = min(kChunk, p.seq_len - t0);
  const int* rows = p.blocks + ((int64_t{1} * b * p.seq_len + t0) * p.groups + g) * p.n_sel;
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
static __global__ void CountListsKernel(AttentionProblem p, SelectedLists lists) {
  extern __shared__ uint32_t bits[];
  const int chunk = blockIdx.x % lists.chunks, bg = blockIdx.x / lists.chunks;
  MarkChunk(p, bg, chunk, bits);
  int* counts = lists.counts + (int64_t{1} * bg * lists.chunks + chunk) * p.sel_blocks;
  for (int j = threadIdx.x; j < p.sel_blocks; j += blockDim.x) counts[j] = __popc(bits[j]);
}

constexpr int kRankSlices = 16;

// kRankSlices threads a block of the selection, each for a run of chunks: first its sum, then, with
// the sums before it, its chunks' starts. Grid: ⌈S_sel / 32⌉ · B·G.
static __global__ void RankListsKernel(AttentionProblem p, SelectedLists lists) {
  __shared__ int sums[kRankSlices][kWarp];
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

// One warp a (batch, group) pair.
static __global__ void OffsetListsKernel(AttentionProblem p, SelectedLists lists) {
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
static __global__ void FillListsKernel(AttentionProblem p, SelectedLists lists) {
  extern __shared__ uint32_t bits[];
  const int chunk = blockIdx.x % lists.chunks, bg = blockIdx.x / lists.chunks;
  MarkChunk(p, bg, chunk, bits);
  const int* starts = lists.counts + (int64_t{1} * bg * lists.chunks + chunk) * p.sel_blocks;
  int* tokens = lists.tokens + int64_t{1} * bg * lists.capacity;
  for (int j = threadIdx.x; j < p.sel_blocks; j += blockDim.x) {
    uint32_t left = bits[j];
    if (left == 0) continue;
    int* to = tokens + lists.begins[bg * p.sel_blocks + j] + starts[j];
    for (; left != 0; left &= left - 1) *to++ = chunk * kChunk + __ffs(left) - 1;
  }
}

}  // namespace nsa::cuda
