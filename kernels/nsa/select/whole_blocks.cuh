// Block selection for the usual sizes of blocks: a compressed key has two strides of tokens (l = 2
// d) and a selection block has kKeys of them (l' = kKeys · d, 4 or 8). Block j is overlapped by the
// keys from j·kKeys − 1 to j·kKeys + kKeys − 1, by half of the first and of the last.
//
// A round begins with the first key of a block, so it completes 128 / kKeys blocks. All that it
// needs of the round before is the sum of its last key. Each lane adds up one block. A token's list
// of best blocks is in shared memory, which leaves the registers to the products.
#pragma once

#include "kernels/nsa/select/select_tile.cuh"

namespace nsa::cuda {

template <int kD, int kKeys>
class WholeBlocks {
 public:
  static SelectSizes Sizes(const NsaShape& s) { return {.listed = s.n_sel - kForced}; }

  // Scores the tile's blocks and chooses the best.
  __device__ __forceinline__ void Run(const SelectShared<kD>& shared, const AttentionProblem& p,
                                      const SelectTile& tile, const Candidates& candidates,
                                      const SelectOutputs& out, const SelectSizes& sizes, int warp,
                                      int lane) {
    slots_ = sizes.listed;
    lists_ = shared.best + warp * kTokensOfWarp * slots_;
    float* const sums = shared.sums + warp * kTokensOfWarp * kSumStride;
    for (int i = lane; i < kTokensOfWarp * slots_; i += kWarp) lists_[i] = 0;
    const Ends ends = candidates.Of(warp * kTokensOfWarp + lane % kTokensOfWarp);
    if (lane < kTokensOfWarp) {
      const bool chooses = slots_ > 0 && warp * kTokensOfWarp + lane < tile.tokens;
      *StateOf(sums + lane * kSumStride) = {0, NAN, ends.first + 1,
                                            chooses ? max(0, ends.current - 2 - ends.first) : 0};
    }
    int base = tile.first / kKeys;  // the round's first block
    // Blocks from `end` on have no keys, or can only be chosen as forced blocks.
    const int end = out.scores != nullptr ? min(tile.last / kKeys + 1, p.sel_blocks)
                                          : (tile.t0 + tile.tokens - 1) / p.l_sel - 1;
    Rounds<kD> rounds(shared, p, tile, base * kKeys, CeilDiv(max(0, end - base), kBlocks), warp,
                      lane);
    for (; rounds.Next(); base += kBlocks) {
      const int block = base + lane;
      float scores[kTokensOfWarp];
      uint32_t better[kTokensOfWarp];
#pragma unroll
      for (int i = 0; i < kTokensOfWarp; ++i) {
        float* const row = sums + i * kSumStride;
        const State state = *StateOf(row);
        scores[i] = Score(row, state.last, lane);
        const bool free = lane < kBlocks && static_cast<uint32_t>(block - state.from) <
                                                static_cast<uint32_t>(state.blocks);
        // Blocks come in ascending order, so a later one must have a higher score.
        better[i] = __ballot_sync(0xffffffffu, free && !(scores[i] <= state.worst));
      }
      if (out.scores != nullptr && lane < kBlocks && block < end) {
#pragma unroll
        for (int i = 0; i < kTokensOfWarp; ++i) {
          const int token = warp * kTokensOfWarp + i;
          if (token < tile.tokens) {
            out.scores[tile.Row(p, token) * p.sel_blocks + block] = scores[i];
          }
        }
      }
      // The code that adds to a list is long, so there is one copy of it: the tokens take turns in
      // the first place of both arrays.
      static_assert(kTokensOfWarp == 4);
#pragma unroll 1
      for (int i = 0; (better[0] | better[1] | better[2] | better[3]) != 0; ++i) {
        if (better[0] != 0) Add(i, sums + i * kSumStride, scores[0], block, better[0], lane);
#pragma unroll
        for (int j = 0; j + 1 < kTokensOfWarp; ++j) {
          scores[j] = scores[j + 1];
          better[j] = better[j + 1];
        }
        scores[kTokensOfWarp - 1] = 0;
        better[kTokensOfWarp - 1] = 0;
      }
    }
  }

  // The best blocks of the warp's i-th token.
  __device__ __forceinline__ BestBlocks Best(int i) const {
    BestBlocks best;
    if (lists_ != nullptr) best.Load(lists_ + i * slots_, slots_, threadIdx.x % kWarp);
    return best;
  }

 private:
  static constexpr int kBlocks = kRoundKeys / kKeys;  // of a round
  static_assert(kBlocks <= kWarp && kKeys % 4 == 0);

  // What is kept of a token between rounds, in the columns behind its sums.
  struct alignas(16) State {
    float last;        // the sum of the last key of the round before
    float worst;       // the last score of the token's list; NaN while the list is not full
    int from, blocks;  // blocks that compete for the list: `from` … from + blocks − 1
  };
  static_assert(sizeof(State) <= 4 * (kSumStride - kRoundKeys));
  __device__ __forceinline__ static State* StateOf(float* sums) {
    return reinterpret_cast<State*>(sums + kRoundKeys);
  }

  // The score of the round's block `lane` from a token's sums. Lanes after the last block return
  // the scores of the first again.
  __device__ __forceinline__ static float Score(float* sums, float last, int lane) {
    float keys[kKeys];
#pragma unroll
    for (int i = 0; i < kKeys; i += 4) {
      *reinterpret_cast<float4*>(keys + i) =
          *reinterpret_cast<const float4*>(sums + lane % kBlocks * kKeys + i);
    }
    const float before = __shfl_up_sync(0xffffffffu, keys[kKeys - 1], 1);
    __syncwarp();  // all lanes have read the state
    if (lane == kBlocks - 1) StateOf(sums)->last = keys[kKeys - 1];
    float score = 0.5f * (lane == 0 ? last : before);
#pragma unroll
    for (int i = 0; i + 1 < kKeys; ++i) score += keys[i];
    return fmaf(keys[kKeys - 1], 0.5f, score);
  }

  // Adds the blocks of the lanes in `better` to the list of the warp's i-th token.
  __device__ __forceinline__ void Add(int i, float* sums, float score, int block, uint32_t better,
                                      int lane) {
    BestBlocks best;
    best.Load(lists_ + i * slots_, slots_, lane);
    best.Add(BestBlocks::KeyOf(score, block), better, slots_, lane);
    best.Store(lists_ + i * slots_, slots_, lane);
    if (lane == (slots_ - 1) % kWarp) StateOf(sums)->worst = best.LastScore(slots_);
    __syncwarp();
  }

  uint64_t* lists_ = nullptr;  // [kTokensOfWarp, slots_]; null where all candidates are chosen
  int slots_ = 0;
};

}  // namespace nsa::cuda
