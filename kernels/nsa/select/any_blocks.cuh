// Block selection with any sizes of blocks. The keys of a round are collected in shared memory,
// where each (token, selection block) pair adds its share of them in ascending order. Blocks that
// no later key overlaps are offered, 32 at a time, to the lists of best blocks, which are kept in
// registers.
#pragma once

#include "kernels/nsa/select/select_tile.cuh"

namespace nsa::cuda {

// Upper bound of the number of selection blocks that the keys of a round overlap.
inline int ScoreCapacity(const NsaShape& s) {
  return kRoundKeys * s.d / s.l_sel + CeilDiv(s.l, s.l_sel) + 2;
}

// Number of compressed keys that overlap a selection block.
__host__ __device__ inline int KeysOfBlock(int l, int d, int l_sel) {
  return l / d - 1 + l_sel / d;
}

// The scores of a round, for selection blocks [base, end). A block's place in a row of `scores` is
// its number modulo capacity, so that a block that the next round touches too stays where it is.
struct ScoredBlocks {
  int base = 0, end = 0;
  int start = 0;            // base mod capacity
  float* scores = nullptr;  // [16, capacity]

  // For blocks from `base` on.
  __device__ __forceinline__ float* Place(int token, int capacity, int block) const {
    const int place = start + block - base;
    return scores + token * capacity + (place < capacity ? place : place - capacity);
  }
  __device__ __forceinline__ float At(int token, int capacity, int block) const {
    return block < end ? *Place(token, capacity, block) : 0.0f;
  }
};

// shares[i] ← the share of the i-th key that overlaps a selection block j, which is key
// j·l'/d − l/d + 1 + i. The share does not depend on j.
__device__ __forceinline__ void FillShares(const AttentionProblem& p, float* shares) {
  const float share = 1.0f / p.l;
  for (int i = threadIdx.x; i < KeysOfBlock(p.l, p.d, p.l_sel); i += blockDim.x) {
    const int from = (i + 1) * p.d - p.l;  // first token of the key, relative to the block's first
    shares[i] = static_cast<float>(min(p.l_sel, from + p.l) - max(0, from)) * share;
  }
}

// Adds the contributions of keys [begin, end) to the scores of the blocks that they overlap, on top
// of the scores that `before` has of these blocks. A thread computes one selection block at a time
// for several tokens.
__device__ __forceinline__ ScoredBlocks AddScores(const AttentionProblem& p, int begin, int end,
                                                  const float* sums, const float* shares,
                                                  int tokens, int capacity,
                                                  const ScoredBlocks& before, float* scores) {
  ScoredBlocks blocks;
  blocks.base = begin * p.d / p.l_sel;
  blocks.end = min(((end - 1) * p.d + p.l - 1) / p.l_sel + 1, p.sel_blocks);
  blocks.start = blocks.base % capacity;
  blocks.scores = scores;
  const int touched = blocks.end - blocks.base;
  const int at_once = max(1, static_cast<int>(blockDim.x) / touched);  // tokens
  const int first_token = threadIdx.x / touched;
  if (first_token >= at_once) return blocks;
  for (int offset = threadIdx.x % touched; offset < touched; offset += blockDim.x) {
    const int j = blocks.base + offset;
    const int origin = j * (p.l_sel / p.d) - p.l / p.d + 1;  // first key that overlaps the block
    const int first_key = max(begin, origin);
    const int keys = min(end, origin + KeysOfBlock(p.l, p.d, p.l_sel)) - first_key;
    const float* share = shares + first_key - origin;
    for (int token = first_token; token < tokens; token += at_once) {
      const float* row = sums + token * kSumStride + first_key - begin;
      float sum = before.At(token, capacity, j);
      for (int key = 0; key < keys; ++key) sum = fmaf(row[key], share[key], sum);
      *blocks.Place(token, capacity, j) = sum;
    }
  }
  return blocks;
}

// The choice of a warp's tokens.
template <int kD>
class AnyBlocks {
 public:
  static SelectSizes Sizes(const NsaShape& s) {
    return {.capacity = ScoreCapacity(s), .keys_of_block = KeysOfBlock(s.l, s.d, s.l_sel)};
  }

  // Scores the tile's blocks and chooses the best.
  __device__ __forceinline__ void Run(const SelectShared<kD>& shared, const AttentionProblem& p,
                                      const SelectTile& tile, const Candidates& candidates,
                                      const SelectOutputs& out, const SelectSizes& sizes, int warp,
                                      int lane) {
    FillShares(p, shared.shares);
    const int capacity = sizes.capacity;
    const int rounds_of_tile = CeilDiv(max(0, tile.last - tile.first), kRoundKeys);
    Rounds<kD> rounds(shared, p, tile, tile.first, rounds_of_tile, warp, lane);
    ScoredBlocks blocks;
    int offered = tile.first * p.d / p.l_sel;  // blocks before it are final and have been offered
    for (int begin = tile.first; rounds.Next(); begin += kRoundKeys) {
      const int end = min(begin + kRoundKeys, tile.last);
      blocks = AddScores(p, begin, end, shared.sums, shared.shares, tile.tokens, capacity, blocks,
                         shared.scores);
      __syncthreads();
      const int final_blocks = end * p.d / p.l_sel;
      Offer(p, tile, candidates, blocks, offered, final_blocks, capacity, out, warp, lane);
      offered = final_blocks;
    }
    // The blocks of the last keys, and the blocks that no key overlaps.
    const int last_block = (tile.t0 + tile.tokens - 1) / p.l_sel;
    const int to = out.scores != nullptr ? max(last_block, blocks.end) : last_block;
    Offer(p, tile, candidates, blocks, offered, to, capacity, out, warp, lane);
  }

  // The best blocks of the warp's i-th token.
  __device__ __forceinline__ const BestBlocks& Best(int i) const { return best_[i]; }

 private:
  // Offers blocks [from, to), whose scores are final, to the lists and stores the scores if asked.
  __device__ __forceinline__ void Offer(const AttentionProblem& p, const SelectTile& tile,
                                        const Candidates& candidates, const ScoredBlocks& blocks,
                                        int from, int to, int capacity, const SelectOutputs& out,
                                        int warp, int lane) {
#pragma unroll
    for (int i = 0; i < kTokensOfWarp; ++i) {
      const int token = warp * kTokensOfWarp + i;
      if (token >= tile.tokens) break;
      const Ends ends = candidates.Of(token);
      for (int block = from + lane; block - lane < to; block += kWarp) {
        const float score = block < to ? blocks.At(token, capacity, block) : 0.0f;
        if (out.scores != nullptr && block < blocks.end && block < to) {
          out.scores[tile.Row(p, token) * p.sel_blocks + block] = score;
        }
        const bool free = block < to && ends.Between(block);
        best_[i].Offer(free ? BestBlocks::KeyOf(score, block) : 0, p.n_sel - kForced, lane);
      }
    }
  }

  BestBlocks best_[kTokensOfWarp];
};

}  // namespace nsa::cuda
