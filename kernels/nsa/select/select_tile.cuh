// The work of a thread block of SelectBlocksKernel (select_blocks.cu) on its 16 tokens: it loads
// queries and keys and adds up probabilities over the heads. What follows depends on the sizes of
// blocks: whole_blocks.cuh is for the common ones, any_blocks.cuh for all others.
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

// What the sizes of blocks add to a thread block's shared memory.
struct SelectSizes {
  int listed = 0;         // keys of a token's list of best blocks, where lists are in shared memory
  int capacity = 0;       // scores of a token
  int keys_of_block = 0;  // shares
};

// The layout of a thread block's shared memory.
template <int kD>
struct SelectShared {
  bf16* q;         // [h, 16, kD]: each head is an A tile
  bf16* k;         // [warp][32, kD]
  uint64_t* best;  // [16, listed]
  float2* lse;     // [h, 8]: of tokens i and i + 8, in log2 units
  // [16, kSumStride]: probabilities of a round's keys, summed over the heads, and eight columns
  // that WholeBlocks uses.
  float* sums;
  float* scores;    // [16, capacity]: of the blocks that a round touches; see ScoredBlocks
  float* shares;    // [keys_of_block]: fraction of a key's tokens that are in a block it overlaps
  float2* partial;  // [warp][h, 16], for the denominators; shares memory with `sums`

  __host__ __device__ static constexpr int Bytes(int h, const SelectSizes& sizes) {
    return 2 * kD * (h * kTokens + kRoundKeys) + 8 * kTokens * sizes.listed +
           4 * (h * kTokens + SumFloats(h) + kTokens * sizes.capacity + sizes.keys_of_block);
  }
  __host__ __device__ static constexpr int SumFloats(int h) {
    const int sums = kTokens * kSumStride, partial = 2 * kWarps * h * kTokens;
    return sums > partial ? sums : partial;
  }
  __device__ SelectShared(uint8_t* memory, int h, const SelectSizes& sizes) {
    q = reinterpret_cast<bf16*>(memory);
    k = q + h * kTokens * kD;
    best = reinterpret_cast<uint64_t*>(k + kRoundKeys * kD);
    lse = reinterpret_cast<float2*>(best + kTokens * sizes.listed);
    sums = reinterpret_cast<float*>(lse + h * kTokens / 2);
    partial = reinterpret_cast<float2*>(sums);
    scores = sums + SumFloats(h);
    shares = scores + kTokens * sizes.capacity;
  }
  // The place in `lse` of row head · 16 + token.
  __device__ __forceinline__ float& Lse(int row) const {
    return reinterpret_cast<float*>(lse)[row / kTokens * kTokens + row % 8 * 2 + row / 8 % 2];
  }
};

// The tokens of a thread block and the compressed keys that at least one of them sees.
struct SelectTile {
  int b, g;
  int t0, tokens;   // t0 … t0 + tokens − 1
  int first, last;  // keys [first, last)
  KeyRange common;  // the keys that all tokens see

  __device__ int64_t Row(const AttentionProblem& p, int token) const {
    return (int64_t{1} * b * p.seq_len + t0 + token) * p.groups + g;
  }
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

// The first and the last block that a token can choose.
struct Ends {
  int first, current;
  // Whether a block between them competes for a place: those at the ends are forced.
  __device__ __forceinline__ bool Between(int block) const {
    return block > first && block < current - 1;
  }
};

// The candidates of the tile's tokens: lanes i and i + 16 of each warp hold those of token i.
class Candidates {
 public:
  __device__ __forceinline__ Candidates(const AttentionProblem& p, const SelectTile& tile,
                                        int lane) {
    const int t = tile.t0 + min(lane % kTokens, tile.tokens - 1);
    ends_ = {FirstBlock(p, tile.b, t), t / p.l_sel};
  }
  // Whether every token has at most n, so that no scores are needed.
  __device__ __forceinline__ bool AllFit(int n) const {
    return __all_sync(0xffffffffu, ends_.current - ends_.first + 1 <= n);
  }
  __device__ __forceinline__ Ends Of(int token) const {
    return {__shfl_sync(0xffffffffu, ends_.first, token),
            __shfl_sync(0xffffffffu, ends_.current, token)};
  }

 private:
  Ends ends_;
};

template <int kD>
__device__ __forceinline__ void LoadQueries(const SelectShared<kD>& shared,
                                            const AttentionProblem& p, const SelectTile& tile) {
  constexpr int kChunks = Tile<kD>::kChunks;
  for (int i = threadIdx.x; i < p.h * kTokens * kChunks; i += blockDim.x) {
    const int row = i / kChunks, chunk = i % kChunks;
    const int head = row / kTokens, token = row % kTokens;
    const bool valid = token < tile.tokens;
    const int64_t at =
        (int64_t{1} * tile.b * p.seq_len + tile.t0 + token) * p.heads + tile.g * p.h + head;
    CopyAsync16(Tile<kD>::At(shared.q, row, chunk), valid ? p.q + at * kD + chunk * 8 : p.q, valid);
  }
}

// From the shared-memory address of one of the first chunks of a row to that of the chunk `chunks`
// after it, an even number: chunks are permuted by an exclusive or of their number within a panel.
__device__ __forceinline__ uint32_t AtChunk(uint32_t address, int chunks) {
  constexpr int kChunks = kPanelColumns / 8;  // of a panel
  return (address ^ (chunks % kChunks * 16)) + chunks / kChunks * (kPanel * sizeof(bf16));
}

// Where a lane reads and writes a warp's 32 keys: a tile of 32 rows, addressed in bytes.
template <int kD>
class WarpKeys {
 public:
  __device__ __forceinline__ WarpKeys(bf16* tile, int lane)
      : row_(lane / kLanes),
        column_(lane % kLanes * 8),
        copied_(SharedAddress(Tile<kD>::At(tile, row_, lane % kLanes))),
        read_(SharedAddress(Tile<kD>::At(tile, (lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1))) {
  }

  // Starts the copy of the keys from `begin` on. Those at and after `tile.last` become zero.
  __device__ __forceinline__ void Copy(const AttentionProblem& p, const SelectTile& tile,
                                       int begin) const {
    // Row numbers fit in an int: B·S_cmp·G < 2³¹.
    const int first_key = (tile.b * p.keys + begin + row_) * p.groups + tile.g;
    const int visible = tile.last - begin - row_;
#pragma unroll
    for (int row = 0; row < kWarpKeys; row += kRowsAtOnce) {
      const bf16* const from = RowPointer(p.k + column_, first_key + row * p.groups, kD);
#pragma unroll
      for (int chunk = 0; chunk < Tile<kD>::kChunks; chunk += kLanes) {
        CopyAsync16(AtChunk(copied_, chunk) + row * kRowBytes, from + chunk * 8, row < visible);
      }
    }
  }

  // The keys as B fragments.
  struct Fragments {
    uint32_t b[kD / 16][kWarpKeys / 16][4];
  };
  __device__ __forceinline__ void Read(Fragments& fragments) const {
#pragma unroll
    for (int step = 0; step < kD / 16; ++step) {
#pragma unroll
      for (int pair = 0; pair < kWarpKeys / 16; ++pair) {
        LoadMatrix4(fragments.b[step][pair], AtChunk(read_, 2 * step) + pair * 16 * kRowBytes);
      }
    }
  }

 private:
  // Lanes that copy a row. A lane's rows are a multiple of eight apart, so they are permuted alike.
  static constexpr int kLanes = Tile<kD>::kChunks < 4 ? Tile<kD>::kChunks : 4;
  static constexpr int kRowsAtOnce = kWarp / kLanes;
  static constexpr int kRowBytes = kD * sizeof(bf16);

  const int row_, column_;
  const uint32_t copied_, read_;
};

// The 16 tokens of the group's heads, head by head, as a lane reads them for A fragments.
template <int kD>
class Queries {
 public:
  __device__ __forceinline__ Queries(const bf16* q, int lane)
      : read_(SharedAddress(Tile<kD>::At(q, lane & 15, lane >> 4))) {}

  // Computes the logits of kHeads heads from `head` on.
  template <int kHeads>
  __device__ __forceinline__ void Multiply(Rows16<kWarpKeys> (&logits)[kHeads], int head,
                                           const typename WarpKeys<kD>::Fragments& keys) const {
    constexpr int kHeadBytes = kTokens * kD * sizeof(bf16);
    const uint32_t from = read_ + head * kHeadBytes;
#pragma unroll
    for (int i = 0; i < kHeads; ++i) Clear<kWarpKeys>(logits[i]);
#pragma unroll
    for (int step = 0; step < kD / 16; ++step) {
#pragma unroll
      for (int i = 0; i < kHeads; ++i) {
        uint32_t a[4];
        LoadMatrix4(a, AtChunk(from, 2 * step) + i * kHeadBytes);
#pragma unroll
        for (int pair = 0; pair < kWarpKeys / 16; ++pair) {
          const uint32_t(&b)[4] = keys.b[step][pair];
          Mma(logits[i][2 * pair], a, b[0], b[1]);
          Mma(logits[i][2 * pair + 1], a, b[2], b[3]);
        }
      }
    }
  }

 private:
  const uint32_t read_;
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

// Computes lse when the compressed branch has not provided it: one pass over the keys per head,
// each warp over its own keys; then the results of the warps are combined in order.
template <int kD>
__device__ __forceinline__ void FindDenominators(const SelectShared<kD>& shared,
                                                 const AttentionProblem& p, const SelectTile& tile,
                                                 int warp, int lane) {
  const LaneTokens tokens = LaneTokensOf(p, tile, lane);
  const float scale_log2 = p.scale * kLog2E;
  const WarpKeys<kD> keys(shared.k + warp * kWarpKeys * kD, lane);
  const Queries<kD> queries(shared.q, lane);
  for (int head = 0; head < p.h; ++head) {
    float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    for (int begin = tile.first + warp * kWarpKeys; begin < tile.last; begin += kRoundKeys) {
      __syncwarp();
      keys.Copy(p, tile, begin);
      CommitCopies();
      WaitCopies<0>();
      __syncwarp();
      typename WarpKeys<kD>::Fragments fragments;
      keys.Read(fragments);
      Rows16<kWarpKeys> products[1];
      queries.Multiply(products, head, fragments);
      Rows16<kWarpKeys>& logits = products[0];
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
    shared.Lse(row) = sum > 0 ? maximum + log2f(sum) : INFINITY;
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
    shared.Lse(row) = token < tile.tokens ? lse[at] * kLog2E : INFINITY;
  }
}

// sums[token, key] ← Σ over the heads of the probabilities, for the warp's 32 keys. Waits for the
// other warps before it writes, and after.
template <int kD>
__device__ __forceinline__ void SumHeads(const SelectShared<kD>& shared, const AttentionProblem& p,
                                         const SelectTile& tile, const Queries<kD>& queries,
                                         const typename WarpKeys<kD>::Fragments& keys,
                                         const LaneTokens& tokens, int begin, int warp, int lane) {
  const float scale_log2 = p.scale * kLog2E;
  Rows16<kWarpKeys> sum;
  Clear<kWarpKeys>(sum);
  const auto add = [&](const Rows16<kWarpKeys>& logits, int head) {
    const float2 lse = shared.lse[head * (kTokens / 2) + lane / 4];
    ForEachKey(begin, lane, [&](int n, int e, int i, int) {
      sum[n][e] += Exp2(fmaf(logits[n][e], scale_log2, -(i == 0 ? lse.x : lse.y)));
    });
  };
  // Two heads at a time, so that products need not wait for each other.
  int head = 0;
#pragma unroll 1
  for (; head + 1 < p.h; head += 2) {
    Rows16<kWarpKeys> logits[2];
    queries.Multiply(logits, head, keys);
    add(logits[0], head);
    add(logits[1], head + 1);
  }
  if (head < p.h) {
    Rows16<kWarpKeys> logits[1];
    queries.Multiply(logits, head, keys);
    add(logits[0], head);
  }
  if (begin < tile.common.begin || begin + kWarpKeys > tile.common.end) {
    ForEachKey(begin, lane, [&](int n, int e, int i, int key) {
      if (!Sees(tokens, i, key)) sum[n][e] = 0;
    });
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < kWarpKeys / 8; ++n) {
    float* to = shared.sums + lane / 4 * kSumStride + warp * kWarpKeys + n * 8 + 2 * (lane & 3);
    *reinterpret_cast<float2*>(to) = {sum[n][0], sum[n][1]};
    *reinterpret_cast<float2*>(to + 8 * kSumStride) = {sum[n][2], sum[n][3]};
  }
  __syncthreads();
}

// The warps' sums of one round after another: round r has keys [first + 128 r, + 128).
template <int kD>
class Rounds {
 public:
  __device__ __forceinline__ Rounds(const SelectShared<kD>& shared, const AttentionProblem& p,
                                    const SelectTile& tile, int first, int rounds, int warp,
                                    int lane)
      : shared_(shared),
        p_(p),
        tile_(tile),
        tokens_(LaneTokensOf(p, tile, lane)),
        keys_(shared.k + warp * kWarpKeys * kD, lane),
        queries_(shared.q, lane),
        begin_(first + warp * kWarpKeys),
        left_(rounds),
        warp_(warp),
        lane_(lane) {
    if (rounds > 0) keys_.Copy(p, tile, begin_);
    CommitCopies();
    WaitCopies<0>();
    __syncthreads();
  }
  // Computes the sums of the next round; false after the last one.
  __device__ __forceinline__ bool Next() {
    if (left_ == 0) return false;
    WaitCopies<0>();
    __syncwarp();
    typename WarpKeys<kD>::Fragments fragments;
    keys_.Read(fragments);
    __syncwarp();
    // The warp's next keys are copied while these are multiplied.
    if (--left_ > 0) keys_.Copy(p_, tile_, begin_ + kRoundKeys);
    CommitCopies();
    SumHeads<kD>(shared_, p_, tile_, queries_, fragments, tokens_, begin_, warp_, lane_);
    begin_ += kRoundKeys;
    return true;
  }

 private:
  const SelectShared<kD>& shared_;
  const AttentionProblem& p_;
  const SelectTile& tile_;
  const LaneTokens tokens_;
  const WarpKeys<kD> keys_;
  const Queries<kD> queries_;
  int begin_, left_;
  const int warp_, lane_;
};

}  // namespace nsa::cuda
