// The selection blocks of a new row, by the rules of kernels/nsa/select/select_blocks.h, from the
// scores of the compressed keys that attend_rows.cu has stored. Where the sequence is short, every
// thread block that attends to selected keys chooses its row's blocks itself; else one kernel
// does so for all (choose_blocks.cu).
#pragma once

#include <algorithm>

#include "kernels/nsa/decode/problem.cuh"
#include "kernels/nsa/select/best_blocks.cuh"

namespace nsa::cuda {

// log2 Σ 2^score of the compressed keys that head `head` of a row sees, on all lanes of a warp;
// +inf if it sees none.
__device__ __forceinline__ float LogSum(const DecodeProblem& p, int row, int head) {
  const int lane = threadIdx.x % kWarp;
  float max = -INFINITY, sum = 0;
  for (int part = lane; part < p.parts[kCmp]; part += kWarp) {
    max = fmaxf(max, p.stats[p.StatsAt(p.first_part[kCmp] + part, row, head)].x);
  }
  max = WarpMax(max);
  if (max == -INFINITY) return INFINITY;
  for (int part = lane; part < p.parts[kCmp]; part += kWarp) {
    const float2 stats = p.stats[p.StatsAt(p.first_part[kCmp] + part, row, head)];
    sum += stats.y * Exp2(stats.x - max);
  }
  return max + log2f(WarpSum(sum));
}

// The scores of a compressed key with the heads of a group.
template <int kHeads>
struct KeyScores {
  float of_head[kHeads];

  __device__ __forceinline__ void Load(const DecodeProblem& p, int row, int head0, int key) {
    const float* const at = p.scores + (int64_t{row} * p.heads + head0) * p.score_step + key;
#pragma unroll  // all loads under way
    for (int a = 0; a < kHeads; ++a) of_head[a] = a < p.h ? at[a * p.score_step] : 0.0f;
  }
  // The key's p, summed over the heads.
  __device__ __forceinline__ float Share(const DecodeProblem& p, const float* log_sums) const {
    float share = 0;
#pragma unroll
    for (int a = 0; a < kHeads; ++a) share += a < p.h ? Exp2(of_head[a] - log_sums[a]) : 0.0f;
    return share;
  }
};

// Σ_i share(i) · |compression block i ∩ selection block j| / l over the visible blocks i.
template <class Share>
__device__ __forceinline__ float ScoreOf(const DecodeProblem& p, KeyRange visible, int j,
                                         Share share) {
  const KeyRange tokens = SelectionBlock(p, j);
  const int after_miss = tokens.begin - p.l + p.d;  // the first block that ends in j begins here
  const KeyRange overlapping = {after_miss <= 0 ? 0 : after_miss / p.d,
                                (tokens.end + p.d - 1) / p.d};
  const KeyRange keys = Intersection(visible, overlapping);
  float score = 0;
  for (int i = keys.begin; i < keys.end; ++i) {
    const KeyRange common = Intersection({i * p.d, i * p.d + p.l}, tokens);
    if (common.end <= common.begin) continue;
    score += share(i) * static_cast<float>(common.end - common.begin) / static_cast<float>(p.l);
  }
  return score;
}

// What a row can choose from.
struct Choice {
  KeyRange candidates;
  int others;   // candidates.begin + 1 … current − 2
  bool needed;  // otherwise it has all

  __device__ __forceinline__ Choice(const DecodeProblem& p, int t, int start)
      : candidates(CandidateBlocks(p, t, start)),
        others(max(0, candidates.end - candidates.begin - kForced)),
        needed(candidates.end - candidates.begin > p.n_sel) {}

  // blocks[n] ← the choice by the scores of the others, on one warp.
  __device__ __forceinline__ void Make(const DecodeProblem& p, const float* scores,
                                       int* blocks) const {
    const int lane = threadIdx.x % kWarp;
    BestBlocks best;
    for (int base = 0; needed && base < others; base += kWarp) {
      const int i = base + lane;
      const uint64_t key =
          i < others ? BestBlocks::KeyOf(scores[i], candidates.begin + 1 + i) : uint64_t{0};
      best.Offer(key, p.n_sel - kForced, lane);
    }
    best.Store(candidates.begin, candidates.end - 1, p.n_sel, blocks, lane);
  }
};

// The most compression and selection blocks among which every thread block chooses for itself. Many
// rows choose in a kernel of their own, which chooses once for all parts of a row.
constexpr int kMostToChooseHere = 1024;
inline bool ChoosesInParts(const DecodeProblem& p) {
  const int blocks = (p.tokens - 1) / p.l_sel + 1;
  return p.rows == 1 && std::max<int64_t>(p.score_step, blocks) <= kMostToChooseHere;
}

// Shared memory of ChooseHere().
template <int kHeads>
struct ChoiceShared {
  float log_sums[kHeads];
  float shares[kMostToChooseHere];  // of the compressed keys
  float scores[kMostToChooseHere];  // of the selection blocks
  int blocks[kMostSelected];        // what was chosen
};

// Chooses the blocks of a row and group on all threads of a thread block.
template <int kHeads>
__device__ __forceinline__ void ChooseHere(const DecodeProblem& p, int row, int g,
                                           ChoiceShared<kHeads>& shared) {
  const int t = p.PositionOf(row), start = p.DocStart(row), step = static_cast<int>(blockDim.x);
  const Choice choice(p, t, start);
  if (choice.needed) {
    const KeyRange visible = BranchRule<kCmp>::Keys(p, t, start);
    int i = visible.begin + static_cast<int>(threadIdx.x);
    KeyScores<kHeads> scores;  // loaded while the sums are
    if (i < visible.end) scores.Load(p, row, g * p.h, i);
    for (int a = threadIdx.x / kWarp; a < p.h; a += step / kWarp) {
      const float log_sum = LogSum(p, row, g * p.h + a);
      if (threadIdx.x % kWarp == 0) shared.log_sums[a] = log_sum;
    }
    __syncthreads();
    while (i < visible.end) {
      shared.shares[i] = scores.Share(p, shared.log_sums);
      i += step;
      if (i < visible.end) scores.Load(p, row, g * p.h, i);
    }
    __syncthreads();
    for (i = threadIdx.x; i < choice.others; i += step) {
      shared.scores[i] = ScoreOf(p, visible, choice.candidates.begin + 1 + i,
                                 [&](int key) { return shared.shares[key]; });
    }
  }
  __syncthreads();
  if (threadIdx.x < kWarp) choice.Make(p, shared.scores, shared.blocks);
  __syncthreads();
}

}  // namespace nsa::cuda
