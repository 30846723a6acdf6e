// The work of a thread block of SelectBlocksKernel (select_blocks.cu) on its 16 tokens: it loads
// queries and keys, adds up probabilities over the heads, turns them into scores of selection
// blocks and offers these blocks to the tokens' lists of best blocks.
#pragma once

#include "kernels/nsa/branch/attention_products.cuh"
#include "kernels/nsa/branch/attention_tile.cuh"
#include "kernels/nsa/select/best_blocks.cuh"

namespace nsa::cuda {

constexpr int kTokens = 16;  // of a thread block
constexpr int kWarps = 4;
constexpr int kWarpKeys = 32;
constexpr int kRoundKeys = kWarps * kWarpKeys;
constexpr int kTokensOfWarp = kTokens / kWarps;  // tokens whose blocks a warp chooses
// Consecutive rows start eight banks apart: a half warp stores its accumulators to different banks.
constexpr int kSumStride = kRoundKeys + 8;

struct SelectOutputs {
  const float* lse;  // [B, S, H], or null: computed here
  int* blocks;       // [B, S, G, n]
  float* scores;     // [B, S, G, S_sel] or null
};

// Upper bound of the number of selection blocks that the keys of a round overlap.
inline int ScoreCapacity(const NsaShape& s) {
  return kRoundKeys * s.d / s.l_sel + CeilDiv(s.l, s.l_sel) + 2;
}

// Number of compressed keys that overlap a selection block.
__host__ __device__ inline int KeysOfBlock(int l, int d, int l_sel) {
  return l / d - 1 + l_sel / d;
}

// The layout of a thread block's shared memory.
template <int kD>
struct SelectShared {
  bf16* q;          // [h, 16, kD]: each head is an A tile
  bf16* k;          // [warp][32, kD]
  float* lse;       // [h, 16], in log2 units
  float* sums;      // [16, kSumStride]: probabilities of a round's keys, summed over the heads
  float* scores;    // [16, capacity]: of the blocks that a round touches; see ScoredBlocks
  float* shares;    // [KeysOfBlock()]: fraction of a key's tokens that are in a block it overlaps
  float2* partial;  // [warp][h, 16], for the denominators; shares memory with `sums`

  __host__ __device__ static constexpr int Bytes(int h, int capacity, int keys_of_block) {
    return 2 * kD * (h * kTokens + kRoundKeys) +
           4 * (h * kTokens + SumFloats(h) + kTokens * capacity + keys_of_block);
  }
  __host__ __device__ static constexpr int SumFloats(int h) {
    const int sums = kTokens * kSumStride, partial = 2 * kWarps * h * kTokens;
    return sums > partial ? sums : partial;
  }
  __device__ SelectShared(uint8_t* memory, int h, int capacity) {
    q = reinterpret_cast<bf16*>(memory);
    k = q + h * kTokens * kD;
    lse = reinterpret_cast<float*>(k + kRoundKeys * kD);
    sums = lse + h * kTokens;
    partial = reinterpret_cast<float2*>(sums);
    scores = sums + SumFloats(h);
    shares = scores + kTokens * capacity;
  }
};

// The tokens of a thread block and the compressed keys that at least one of them sees.
struct SelectTile {
  int b, g;
  int t0, tokens;   // t0 … t0 + tokens − 1
  int first, last;  // keys [first, last)
  __device__ int rounds() const { return CeilDiv(max(0, last - first), kRoundKeys); }
};

// The two tokens whose rows a lane holds in the logits of every head.
struct LaneTokens {
  KeyRange keys[2];  // keys that they see
};

__device__ __forceinline__ LaneTokens LaneTokensOf(const AttentionProblem& p,
                                                   const SelectTile& tile, int lane) {
  LaneTokens tokens;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = lane / 4 + 8 * i;
    tokens.keys[i] =
        token < tile.tokens ? KeysOf<kCmp>(p, tile.b, tile.t0 + token) : KeyRange{0, 0};
  }
  return tokens;
}

template <int kD>
__device__ __forceinline__ void LoadQueries(const SelectShared<kD>& shared,
                                            const AttentionProblem& p, const SelectTile& tile) {
  constexpr int kChunks = Tile<kD>::kChunks;
  for (int i = threadIdx.x; i < p.h * kTokens * kChunks; i += blockDim.x) {
    const int row = i / kChunks, chunk = i % kChunks;
    const int head = row / kTokens, token = row % kTokens;
    const bool valid = token < tile.tokens && chunk * 8 < p.dk;
    const int64_t at =
        (int64_t{1} * tile.b * p.seq_len + tile.t0 + token) * p.heads + tile.g * p.h + head;
    CopyAsync16(Tile<kD>::At(shared.q, row, chunk), valid ? p.q + at * p.dk + chunk * 8 : p.q,
                valid);
  }
}

// Starts the copy of the warp's 32 keys from `begin` on. Keys at and after `tile.last` become zero.
template <int kD>
__device__ __forceinline__ void LoadWarpKeys(bf16* to, const AttentionProblem& p,
                                             const SelectTile& tile, int begin, int lane) {
  // As many lanes as divide a warp copy a row: one chunk each, or with keys of 192 one per panel.
  constexpr int kChunks = kD > 128 ? 8 : Tile<kD>::kChunks;
  constexpr int kCopies = Tile<kD>::kChunks / kChunks;
  constexpr int kRowsAtOnce = kWarp / kChunks;
  const int first_row = lane / kChunks, chunk = lane % kChunks;
  // Row numbers fit in an int: B·S_cmp·G < 2³¹.
  const int first_key = (tile.b * p.keys + begin) * p.groups + tile.g;
  const bf16* column = p.k + chunk * 8;
#pragma unroll
  for (int row = first_row; row - first_row < kWarpKeys; row += kRowsAtOnce) {
    const bool valid = begin + row < tile.last && chunk * 8 < p.dk;
    const bf16* const from = RowPointer(column, valid ? first_key + row * p.groups : 0, p.dk);
#pragma unroll
    for (int c = 0; c < kCopies; ++c) {
      CopyAsync16(Tile<kD>::At(to, row, chunk) + c * kPanel, from + c * kPanelColumns, valid);
    }
  }
}

// The warp's 32 keys as B fragments.
template <int kD>
struct KeyFragments {
  uint32_t b[kD / 16][kWarpKeys / 16][4];

  __device__ __forceinline__ void Read(const bf16* tile, int lane) {
#pragma unroll
    for (int step = 0; step < kD / 16; ++step) {
#pragma unroll
      for (int pair = 0; pair < kWarpKeys / 16; ++pair) {
        LoadBByRow<kD>(b[step][pair], tile, pair * 16, step, lane);
      }
    }
  }
  // Computes the logits of a head's 16 tokens.
  __device__ __forceinline__ void Multiply(Rows16<kWarpKeys>& logits, const bf16* q, int head,
                                           int lane) const {
    Clear<kWarpKeys>(logits);
#pragma unroll
    for (int step = 0; step < kD / 16; ++step) {
      uint32_t a[4];
      LoadA<kD>(a, q, head * kTokens, step, lane);
#pragma unroll
      for (int pair = 0; pair < kWarpKeys / 16; ++pair) {
        Mma(logits[2 * pair], a, b[step][pair][0], b[step][pair][1]);
        Mma(logits[2 * pair + 1], a, b[step][pair][2], b[step][pair][3]);
      }
    }
  }
};

// Calls visit(n, e, which of the lane's two tokens, key) for every logit that a lane holds.
template <class Visit>
__device__ __forceinline__ void ForEachKey(int begin, int lane, Visit visit) {
#pragma unroll
  for (int n = 0; n < kWarpKeys / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) visit(n, e, e >> 1, begin + n * 8 + 2 * (lane & 3) + (e & 1));
  }
}

__device__ __forceinline__ bool Sees(const LaneTokens& tokens, int i, int key) {
  return key >= tokens.keys[i].begin && key < tokens.keys[i].end;
}
// Whether all tokens of the tile see all 32 keys of the warp.
__device__ __forceinline__ bool SeeAll(const LaneTokens& tokens, int begin) {
  bool all = true;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    all = all && tokens.keys[i].begin <= begin && tokens.keys[i].end >= begin + kWarpKeys;
  }
  return __all_sync(0xffffffffu, all);
}

// Computes lse when the compressed branch has not provided it: one pass over the keys per head,
// each warp over its own keys; then the results of the warps are combined in order.
template <int kD>
__device__ __forceinline__ void FindDenominators(const SelectShared<kD>& shared,
                                                 const AttentionProblem& p, const SelectTile& tile,
                                                 int warp, int lane) {
  const LaneTokens tokens = LaneTokensOf(p, tile, lane);
  const float scale_log2 = p.scale * kLog2E;
  bf16* keys = shared.k + warp * kWarpKeys * kD;
  for (int head = 0; head < p.h; ++head) {
    float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    for (int begin = tile.first + warp * kWarpKeys; begin < tile.last; begin += kRoundKeys) {
      __syncwarp();
      LoadWarpKeys<kD>(keys, p, tile, begin, lane);
      CommitCopies();
      WaitCopies<0>();
      __syncwarp();
      KeyFragments<kD> fragments;
      fragments.Read(keys, lane);
      Rows16<kWarpKeys> logits;
      fragments.Multiply(logits, shared.q, head, lane);
      float top[2] = {-INFINITY, -INFINITY};
      ForEachKey(begin, lane, [&](int n, int e, int i, int key) {
        logits[n][e] = Sees(tokens, i, key) ? logits[n][e] * scale_log2 : -INFINITY;
        top[i] = fmaxf(top[i], logits[n][e]);
      });
      float reference[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float seen = fmaxf(maximum[i], QuadMax(top[i]));
        reference[i] = seen == -INFINITY ? 0.0f : seen;
        sum[i] *= Exp2(maximum[i] - reference[i]);
        maximum[i] = seen;
      }
      ForEachKey(begin, lane,
                 [&](int n, int e, int i, int) { sum[i] += Exp2(logits[n][e] - reference[i]); });
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float total = QuadSum(sum[i]);
      if ((lane & 3) == 0) {
        shared.partial[(warp * p.h + head) * kTokens + lane / 4 + 8 * i] = {maximum[i], total};
      }
    }
  }
  __syncthreads();
  for (int row = threadIdx.x; row < p.h * kTokens; row += blockDim.x) {
    float maximum = -INFINITY, sum = 0;
    for (int w = 0; w < kWarps; ++w) {
      maximum = fmaxf(maximum, shared.partial[w * p.h * kTokens + row].x);
    }
    for (int w = 0; w < kWarps; ++w) {
      const float2 part = shared.partial[w * p.h * kTokens + row];
      if (part.y > 0) sum += part.y * Exp2(part.x - maximum);
    }
    shared.lse[row] = sum > 0 ? maximum + log2f(sum) : INFINITY;
  }
  __syncthreads();
}

// Tokens after the last get lse = +inf, which makes every probability 0.
template <int kD>
__device__ __forceinline__ void LoadLse(const SelectShared<kD>& shared, const AttentionProblem& p,
                                        const SelectTile& tile, const float* lse) {
  for (int row = threadIdx.x; row < p.h * kTokens; row += blockDim.x) {
    const int head = row / kTokens, token = row % kTokens;
    const int64_t at =
        (int64_t{1} * tile.b * p.seq_len + tile.t0 + token) * p.heads + tile.g * p.h + head;
    shared.lse[row] = token < tile.tokens ? lse[at] * kLog2E : INFINITY;
  }
}

// sums[token, key] ← Σ over the heads of the probabilities, for the warp's 32 keys.
template <int kD>
__device__ __forceinline__ void SumHeads(const SelectShared<kD>& shared, const AttentionProblem& p,
                                         const KeyFragments<kD>& fragments,
                                         const LaneTokens& tokens, int begin, int warp, int lane) {
  const float scale_log2 = p.scale * kLog2E;
  Rows16<kWarpKeys> sum;
  Clear<kWarpKeys>(sum);
  for (int head = 0; head < p.h; ++head) {
    Rows16<kWarpKeys> logits;
    fragments.Multiply(logits, shared.q, head, lane);
    const float lse[2] = {shared.lse[head * kTokens + lane / 4],
                          shared.lse[head * kTokens + lane / 4 + 8]};
    ForEachKey(begin, lane, [&](int n, int e, int i, int) {
      sum[n][e] += Exp2(fmaf(logits[n][e], scale_log2, -lse[i]));
    });
  }
  if (!SeeAll(tokens, begin)) {
    ForEachKey(begin, lane, [&](int n, int e, int i, int key) {
      if (!Sees(tokens, i, key)) sum[n][e] = 0;
    });
  }
#pragma unroll
  for (int n = 0; n < kWarpKeys / 8; ++n) {
    float* to = shared.sums + lane / 4 * kSumStride + warp * kWarpKeys + n * 8 + 2 * (lane & 3);
    *reinterpret_cast<float2*>(to) = {sum[n][0], sum[n][1]};
    *reinterpret_cast<float2*>(to + 8 * kSumStride) = {sum[n][2], sum[n][3]};
  }
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

// The lists of best blocks of a warp's tokens.
struct WarpChoice {
  BestBlocks best[kTokensOfWarp];

  // Offers blocks [from, to), whose scores are final, to the lists and stores the scores if asked.
  __device__ __forceinline__ void Offer(const AttentionProblem& p, const SelectTile& tile,
                                        const ScoredBlocks& blocks, int from, int to, int capacity,
                                        const SelectOutputs& out, int warp, int lane) {
#pragma unroll
    for (int i = 0; i < kTokensOfWarp; ++i) {
      const int token = warp + i * kWarps, t = tile.t0 + token;
      if (token >= tile.tokens) break;
      const int first = FirstBlock(p, tile.b, t), current = t / p.l_sel;
      for (int block = from + lane; block - lane < to; block += kWarp) {
        const float score = block < to ? blocks.At(token, capacity, block) : 0.0f;
        if (out.scores != nullptr && block < blocks.end && block < to) {
          const int64_t row = (int64_t{1} * tile.b * p.seq_len + t) * p.groups + tile.g;
          out.scores[row * p.sel_blocks + block] = score;
        }
        const bool free = block < to && block > first && block < current - 1;
        best[i].Offer(free ? BestBlocks::KeyOf(score, block) : 0, p.n_sel - kForced, lane);
      }
    }
  }
};

}  // namespace nsa::cuda
