// Backward of the three attention branches, without atomics: two kernels that recompute the logits.
//
//   dq   query-major, the forward's tiles:    dS = P ∘ (dO·Vᵀ − delta),  dq = scale · dS·K
//   dkv  key-major, 64 keys per warp group:   dV = Pᵀ·dO,  dK = scale · dSᵀ·Q
//
// with P = exp(scale·q·k − lse) and delta = Σ_c dO·O for each row. Behind a gate, lse − ln gate
// takes the place of lse (kernels/nsa/gate/gate.h). The key-major kernel processes its query rows
// in a fixed order (token order, or the list of tokens that chose the block) and packs 64/h tokens
// · h heads into one tile of up to 64 rows. Every gradient of a key is thus computed by one thread
// block, and the sums are repeatable. Where a key tile has very many rows (block 0 is chosen by
// every token; a compressed key is seen by every later token), the rows are cut into segments, and
// a last kernel adds the segments' fp32 partial sums in order.
#pragma once

#include <climits>
#include <type_traits>

#include "common/nsa/attention_scratch.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/nsa/branch/attention_forward.cuh"

namespace nsa::cuda {

struct AttentionGradients {
  const float2* stats;  // [B, S, H]: lse in log2 units, delta
  const bf16* d_o;      // [B, S, H, dv]
  bf16* dq;             // [B, S, H, dk]
  bf16* dk;             // [B, keys, G, dk]
  bf16* dv;             // [B, keys, G, dv]
  bool add_to_dq;
};

// stats[row] = {lse · log2 e, Σ_c d_o[row, c] · o[row, c]}. dv/8 lanes per row, 16 bytes per lane.
static __global__ void StatsKernel(const bf16* o, const bf16* d_o, const float* lse, float2* stats,
                                   int64_t rows, int dv) {
  const int lanes = dv / 8;
  const int64_t chunk = int64_t{1} * blockIdx.x * blockDim.x + threadIdx.x;
  const int64_t row = chunk / lanes;
  float sum = 0;
  if (row < rows) {
    const Float8 x = Load8(o + chunk * 8), y = Load8(d_o + chunk * 8);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(x.v[i], y.v[i], sum);
  }
  for (int offset = 1; offset < lanes; offset <<= 1) {
    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  }
  if (row < rows && chunk % lanes == 0) stats[row] = {lse[row] * kLog2E, sum};
}

// ---- dq

template <int kD>
__host__ __device__ constexpr int DqSharedBytes(int stages, int rows_padded, int union_bytes) {
  return 4 * (rows_padded + stages * kKeyTile) * kD + kStageBarrierBytes + union_bytes;
}

// Stores dq of one of a thread's two rows.
template <int kD>
__device__ __forceinline__ void StoreDq(const Rows16<kD>& dq, const AttentionProblem& p,
                                        const AttentionGradients& grad, const Row& row, int i,
                                        int lane) {
  if (!row.valid) return;
  auto* out = reinterpret_cast<__nv_bfloat162*>(grad.dq + row.at * p.dk + 2 * (lane & 3));
#pragma unroll
  for (int n = 0; n < kD / 8; ++n) {
    if (n * 8 >= p.dk) break;
    float2 value = {dq[n][2 * i] * p.scale, dq[n][2 * i + 1] * p.scale};
    if (grad.add_to_dq) {
      const float2 old = __bfloat1622float2(out[4 * n]);
      value.x += old.x;
      value.y += old.y;
    }
    out[4 * n] = __floats2bfloat162_rn(value.x, value.y);
  }
}

// With heads of 64 and less kStages is 3.
template <Branch kBranch, int kD, int kStages>
__global__ void __launch_bounds__(kD > 64 ? 384 : 256, kD > 64 ? 1 : 2)
    AttentionDqKernel(AttentionProblem p, AttentionGradients grad, int queries_per_tile,
                      int tiles_per_sequence) {
  const QueryTile at = QueryTileOf(p, queries_per_tile, tiles_per_sequence);
  extern __shared__ __align__(kTileAlignment) uint8_t shared[];
  bf16* q_tile = reinterpret_cast<bf16*>(shared);
  bf16* do_tile = q_tile + at.rows_padded * kD;
  using Stages = KeyStages<kBranch, kD, kStages>;
  bf16* const stage_tiles = do_tile + at.rows_padded * kD;
  auto* const barriers = reinterpret_cast<StageBarriers*>(stage_tiles + Stages::kElements);
  Stages stages(stage_tiles, p, at, barriers);
  LoadQueryTile<kD>(q_tile, p.q, p.dk, p, at.b, at.g, at.t0, at.queries, at.rows_padded);
  LoadQueryTile<kD>(do_tile, grad.d_o, p.dv, p, at.b, at.g, at.t0, at.queries, at.rows_padded);
  const KeyTiles tiles =
      PlanKeyTiles<kBranch>(p, at.b, at.g, at.t0, at.queries, queries_per_tile, barriers + 1);
  if constexpr (Stages::kBarriers) __syncthreads();
  stages.Begin(p, tiles);

  const Row rows[2] = {RowOf<kBranch>(p, at, 0), RowOf<kBranch>(p, at, 1)};
  const float scale_log2 = p.scale * kLog2E;
  float2 stats[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    stats[i] = rows[i].valid ? grad.stats[rows[i].at] : float2{INFINITY, 0};
  }
  Rows16<kD> dq = {};
  for (int i = 0; i < tiles.tiles; ++i) {
    stages.Await(p, tiles, i);
    const KeyTile tile = TileAt<kBranch>(p, tiles, i);
    Rows16<kKeyTile> weights, d_weights;
    const auto weigh = [&] {
      HideUnseen(weights, tile, rows, at.lane);
      // A shift of +inf makes every weight 0.
      const float shift[2] = {Takes(tile, rows[0]) ? stats[0].x : INFINITY,
                              Takes(tile, rows[1]) ? stats[1].x : INFINITY};
#pragma unroll
      for (int n = 0; n < kKeyTile / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          weights[n][e] = Exp2(fmaf(weights[n][e], scale_log2, -shift[e >> 1]));
        }
      }
    };
    TwoByRow<kD, kKeyTile>(
        weights, q_tile, stages.Keys(i), d_weights, do_tile, stages.Values(i), at.warp, at.lane,
        [&] { stages.Refill(p, tiles, i); }, weigh);
    Accumulate<kD, kKeyTile>(dq, weights, stages.Keys(i), at.lane, [&](int step) {
#pragma unroll
      for (int n = 2 * step; n < 2 * step + 2; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) weights[n][e] *= d_weights[n][e] - stats[e >> 1].y;
      }
    });
    stages.Release(i);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) StoreDq<kD>(dq, p, grad, rows[i], i, at.lane);
}

// ---- dk, dv

// The query rows that a thread block of the key-major kernel processes, and where its sums go.
struct DkvWork {
  const int* list;  // in shared memory: the tokens that chose the block, ascending; null: tokens
                    // first, first + 1, …
  int first;
  int count;       // tokens of this segment
  int begin, end;  // keys [begin, end)
  int all_from;    // tokens all_from … all_to see all these keys
  int all_to;
  float* partial;  // fp32 [keys, 2·kD] for partial sums, or null: write to dk and dv directly

  __device__ __forceinline__ int Token(int index) const {
    return list == nullptr ? first + index : list[index];
  }
};

// Rows of a query tile in the key-major kernel of dk and dv. With 64 rows and heads of 128 a thread
// has 192 accumulators.
__host__ __device__ constexpr int RowTile(bool large_tiles) { return large_tiles ? 64 : 32; }
template <int kD>
constexpr int kRowTile = RowTile(kLargeTiles<kD>);

// Per-row data of a tile of query rows. Rows after the last have weight 0.
template <int kRows>
struct RowInfo {
  float2 stats[kRows];
  int2 keys[kRows];  // first key that the row sees, number of keys that it sees
};

// Stages of query rows in the key-major kernel of dk and dv with `groups` warp groups.
__host__ __device__ constexpr int RowStages(int groups) { return groups > 1 ? 3 : 2; }

// `list`: number of tokens of the longest list segment.
template <int kD>
__host__ __device__ constexpr int DkvSharedBytes(bool large_tiles, int groups, int list) {
  const int rows = RowStages(groups) * RowTile(large_tiles);
  return 4 * (groups * kKeyTile + rows) * kD + rows * static_cast<int>(sizeof(RowInfo<1>)) +
         4 * list;
}

constexpr int kDkvThreads = 128;  // of a warp group

// Copies tiles of query rows. A thread copies the same rows and columns of every tile. Without
// kGradients it loads q but not dO, and of a row's RowInfo only `keys`.
template <Branch kBranch, int kD, int kRows = kRowTile<kD>, bool kGradients = true,
          int kThreads = kDkvThreads>
struct RowLoader {
  static constexpr int kChunks = kD / 8;
  static constexpr int kRowsApart = kThreads / kChunks;
  static constexpr int kCopies = kRows / kRowsApart;

  int chunk, first_row;
  const bf16 *q, *d_o;  // the thread's column of token 0, first head of the group
  int tokens;           // per tile

  __device__ __forceinline__ RowLoader(const AttentionProblem& p, const AttentionGradients& grad,
                                       int b, int g)
      : chunk(threadIdx.x % kChunks), first_row(threadIdx.x / kChunks), tokens(kRows / p.h) {
    const int64_t first = int64_t{1} * b * p.seq_len * p.heads + g * p.h;
    q = p.q + first * p.dk + chunk * 8;
    if constexpr (kGradients) d_o = grad.d_o + first * p.dv + chunk * 8;
  }

  // Loads the rows of tokens [from, from + tokens) of the work and their RowInfo.
  __device__ __forceinline__ void Load(const AttentionProblem& p, const AttentionGradients& grad,
                                       const DkvWork& work, int b, int g, int from, bf16* q_tile,
                                       bf16* do_tile, RowInfo<kRows>& info) const {
    const int rows = min(tokens, work.count - from) * p.h;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int row = first_row + i * kRowsApart, query = QueryOf(p, row);
      const bool valid = row < rows;
      // Fits in an int: NsaShape limits B·S·H to below 2³¹.
      const int at = valid ? work.Token(from + query) * p.heads + row - query * p.h : 0;
      CopyAsync16(Tile<kD>::At(q_tile, row, chunk), RowPointer(q, at, p.dk),
                  valid && chunk * 8 < p.dk);
      if constexpr (kGradients) {
        CopyAsync16(Tile<kD>::At(do_tile, row, chunk), RowPointer(d_o, at, p.dv),
                    valid && chunk * 8 < p.dv);
      }
    }
    const int row = threadIdx.x;
    if (row >= kRows) return;
    if (row < rows) {
      const int query = QueryOf(p, row), t = work.Token(from + query);
      const int64_t first = int64_t{1} * b * p.seq_len + t;
      if constexpr (kGradients) {
        CopyAsync8(&info.stats[row], grad.stats + first * p.heads + g * p.h + row - query * p.h);
      }
      const KeyRange keys = KeysOf<kBranch>(p, b, t);
      info.keys[row] = {keys.begin, max(0, keys.end - keys.begin)};
    } else {
      info.stats[row] = {INFINITY, 0};
      info.keys[row] = {0, 0};
    }
  }

  // Whether every token of the tile sees every key of the work.
  __device__ __forceinline__ bool AllSeen(const DkvWork& work, int from) const {
    return work.Token(from) >= work.all_from &&
           work.Token(min(from + tokens, work.count) - 1) <= work.all_to;
  }
};

// Sets the range of tokens that see all keys of the work. With documents, which may hide keys, the
// range is empty.
template <Branch kBranch>
__device__ __forceinline__ void SetAllSeen(const AttentionProblem& p, DkvWork* work) {
  const TokenBounds all = BranchRule<kBranch>::TokensOfAll(p, work->begin, work->end);
  work->all_from = p.doc_start != nullptr ? INT_MAX : all.from;
  work->all_to = all.to;
}

// Floats per key in the partial sums: kD for dk, then kD for dv.
template <int kD>
constexpr int kPartialRow = 2 * kD;

// Writes one thread's part of 16 keys · width columns: to bf16 rows of dk or dv, or to the partial
// sums from column `offset` on.
template <int kD>
__device__ __forceinline__ void StoreKeys(const Rows16<kD>& sum, float factor,
                                          const AttentionProblem& p, const DkvWork& work, bf16* out,
                                          int width, int offset, int b, int g, int warp, int lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = warp * 16 + lane / 4 + 8 * i;
    if (work.begin + row >= work.end) continue;
    bf16* to = out + ((int64_t{1} * b * p.keys + work.begin + row) * p.groups + g) * width;
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
      const int column = n * 8 + 2 * (lane & 3);
      if (n * 8 >= width) break;
      const float2 value = {sum[n][2 * i] * factor, sum[n][2 * i + 1] * factor};
      if (work.partial != nullptr) {
        *reinterpret_cast<float2*>(work.partial + row * kPartialRow<kD> + offset + column) = value;
      } else {
        *reinterpret_cast<__nv_bfloat162*>(to + column) = __floats2bfloat162_rn(value.x, value.y);
      }
    }
  }
}

// Turns the logits of 16 keys × kRows rows into weights.
template <int kRows>
__device__ __forceinline__ void WeighRows(Rows16<kRows>& weights, const RowInfo<kRows>& info,
                                          const DkvWork& work, bool all_seen, float scale_log2,
                                          int warp, int lane) {
#pragma unroll
  for (int n = 0; n < kRows / 8; ++n) {
    const int row = n * 8 + 2 * (lane & 3);  // of elements 0 and 2; elements 1 and 3: row + 1
    const float4 stats = *reinterpret_cast<const float4*>(&info.stats[row]);
    if (!all_seen) {
      // One unsigned comparison checks both ends: a key before the first wraps to a large number.
      const int4 keys = *reinterpret_cast<const int4*>(&info.keys[row]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int key = work.begin + warp * 16 + lane / 4 + 8 * i;
        if (static_cast<unsigned int>(key - keys.x) >= static_cast<unsigned int>(keys.y)) {
          weights[n][2 * i] = -INFINITY;
        }
        if (static_cast<unsigned int>(key - keys.z) >= static_cast<unsigned int>(keys.w)) {
          weights[n][2 * i + 1] = -INFINITY;
        }
      }
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float lse = (e & 1) == 0 ? stats.x : stats.z;
      weights[n][e] = Exp2(fmaf(weights[n][e], scale_log2, -lse));
    }
  }
}

// Turns dO·V of the keys and rows 16·step … 16·step + 15 into gradients of the logits.
template <int kRows>
__device__ __forceinline__ void DifferentiateRows(Rows16<kRows>& d_weights,
                                                  const Rows16<kRows>& weights,
                                                  const RowInfo<kRows>& info, int step, int lane) {
#pragma unroll
  for (int n = 2 * step; n < 2 * step + 2; ++n) {
    const int row = n * 8 + 2 * (lane & 3);
    const float delta[2] = {info.stats[row].y, info.stats[row + 1].y};
#pragma unroll
    for (int e = 0; e < 4; ++e) d_weights[n][e] = weights[n][e] * (d_weights[n][e] - delta[e & 1]);
  }
}

// Computes dk and dv of 64 · kGroups keys of group g over the rows of `work`; kDkvThreads · kGroups
// threads, one warp per 16 keys.
template <Branch kBranch, int kD, int kGroups>
__device__ void WalkRows(const AttentionProblem& p, const AttentionGradients& grad, DkvWork work,
                         int b, int g, uint8_t* shared) {
  constexpr int kRows = kRowTile<kD>, kKeys = kGroups * kKeyTile, kStages = RowStages(kGroups);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  bf16* k_tile = reinterpret_cast<bf16*>(shared);
  bf16* v_tile = k_tile + kKeys * kD;
  bf16* q_tile = v_tile + kKeys * kD;
  bf16* do_tile = q_tile + kStages * kRows * kD;
  auto* info = reinterpret_cast<RowInfo<kRows>*>(do_tile + kStages * kRows * kD);

  LoadKeyTile<kD, kKeys>(k_tile, p.k, p.dk, p, b, g, work.begin, work.end);
  LoadKeyTile<kD, kKeys>(v_tile, p.v, p.dv, p, b, g, work.begin, work.end);
  SetAllSeen<kBranch>(p, &work);
  const RowLoader<kBranch, kD, kRows, true, kGroups * kDkvThreads> loader(p, grad, b, g);
  const int row_tiles = CeilDiv(work.count, loader.tokens);
  auto load = [&](int i) {
    if (i < row_tiles) {
      const int stage = i % kStages;
      loader.Load(p, grad, work, b, g, i * loader.tokens, q_tile + stage * kRows * kD,
                  do_tile + stage * kRows * kD, info[stage]);
    }
    CommitCopies();
  };
  for (int i = 0; i < kStages - 1; ++i) load(i);

  const float scale_log2 = p.scale * kLog2E;
  Rows16<kD> dk = {}, dv = {};
  for (int i = 0; i < row_tiles; ++i) {
    WaitCopies<kStages - 2>();
    FenceTiles();
    __syncthreads();
    // All threads are done with tile i − 1, whose stage this tile takes.
    load(i + kStages - 1);
    const int stage = i % kStages;
    const bf16* q = q_tile + stage * kRows * kD;
    const bf16* d_o = do_tile + stage * kRows * kD;
    Rows16<kRows> weights, d_weights;
    const bool all_seen = loader.AllSeen(work, i * loader.tokens);
    const auto weigh = [&] {
      WeighRows<kRows>(weights, info[stage], work, all_seen, scale_log2, warp, lane);
    };
    TwoByRow<kD, kRows>(
        weights, k_tile, q, d_weights, v_tile, d_o, warp, lane, [] {}, weigh);
    TwoAccumulate<kD, kRows>(dv, weights, d_o, dk, d_weights, q, lane, [&](int step) {
      DifferentiateRows<kRows>(d_weights, weights, info[stage], step, lane);
    });
  }
  StoreKeys<kD>(dk, p.scale, p, work, grad.dk, p.dk, 0, b, g, warp, lane);
  StoreKeys<kD>(dv, 1.0f, p, work, grad.dv, p.dv, kD, b, g, warp, lane);
}

}  // namespace nsa::cuda
