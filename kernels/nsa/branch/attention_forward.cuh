// Forward of the three attention branches: flash attention over the keys of a query tile (Dao,
// arXiv 2307.08691), one warp per 16 rows.
//
// Shared memory: the query tile, stages of 64 keys and values, and for the selected branch the
// union of chosen blocks. Each warp keeps 16 × 64 logits and 16 × dv outputs in registers; the keys
// of the next tile are copied while this one is multiplied. The kernel is limited by the matrix
// unit and, where heads are 64 wide, equally by exponentials: 4 · rows · keys · (dk + dv)/2
// operations per tile against rows · keys exponentials.
//
// Tile i of keys in sm_90a code with heads of 64, as one of the two warp groups sees it. Time goes
// down; what stands in a line begins together:
//
//   when                     | matrix unit        | warp group
//   -------------------------+--------------------+----------------------------------------------
//   tile i has arrived       | S = Q·Kᵀ           | thread 0 starts the copies of tile i + 2, once
//                            |                    |   all warps are done with tile i − 1
//   S is complete            |                    | hides keys, finds the maximum, rarely raises o
//   P of 16 keys is there    | o += P·V of these  | P = exp2(S − maximum) of the next 16 keys
//   o is complete            |                    | is done with tile i
#pragma once

#include "kernels/cuda/begin.cuh"
#include "kernels/nsa/branch/attention_products.cuh"
#include "kernels/nsa/branch/attention_stages.cuh"

namespace nsa::cuda {

struct AttentionOutputs {
  bf16* o;                        // [B, S, H, dv]
  float* lse;                     // [B, S, H]
  unsigned long long* keys_read;  // [1] or null
};

// The weights of a row are computed relative to a running maximum (in log2 units) that may lag
// behind the true one. It is updated only when a logit exceeds it by more than this slack, because
// an update means multiplying all of o. Weights stay below 2^8, where fp32 and bf16 have the same
// relative precision as below 1.
constexpr float kMaximumSlack = 8;

// The running maximum, sum of weights and weighted sum of values of kWidth columns, for the two
// rows of a thread.
template <int kWidth>
struct OnlineSoftmax {
  float maximum[2] = {-INFINITY, -INFINITY};
  float most[2] = {-INFINITY, -INFINITY};  // the maximum is updated for a logit above this
  float shift[2] = {0, 0};                 // −maximum, or 0 while there is none
  float sum[2] = {0, 0};
  Rows16<kWidth> o = {};

  // Sets the maximum of the rows whose `top`, the largest logit of any of their threads, is too
  // large for the present one, and multiplies what there is accordingly.
  __device__ __forceinline__ void Raise(const float (&top)[2], const bool (&takes)[2]) {
    float shrink[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float row_top = QuadMax(top[i]);
      shrink[i] = 1;
      if (!takes[i] || !(row_top > most[i])) continue;
      // Before its first key a row has neither sum nor values, and exp2(−inf) is 0.
      shrink[i] = Exp2(maximum[i] - row_top);
      maximum[i] = row_top;
      most[i] = row_top + kMaximumSlack;
      shift[i] = -row_top;
      sum[i] *= shrink[i];
    }
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) o[n][e] *= shrink[e >> 1];
    }
  }

  // Turns logits into weights and adds them to the state, for the rows that take the tile.
  __device__ __forceinline__ void Add(Rows16<kKeyTile>& logits, const bool (&takes)[2],
                                      float scale_log2, const bf16* v, int lane) {
    float top[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      top[i] = fmaxf(logits[0][2 * i], logits[0][2 * i + 1]);
#pragma unroll
      for (int n = 1; n < kKeyTile / 8; ++n) {
        top[i] = fmaxf(top[i], fmaxf(logits[n][2 * i], logits[n][2 * i + 1]));
      }
      top[i] *= scale_log2;
    }
    if (__any_sync(0xffffffffu, (takes[0] && top[0] > most[0]) || (takes[1] && top[1] > most[1]))) {
      Raise(top, takes);
    }
    // A shift of −inf makes every weight 0.
    const float shift_of[2] = {takes[0] ? shift[0] : -INFINITY, takes[1] ? shift[1] : -INFINITY};
    float added[2] = {0, 0};
    Accumulate<kWidth, kKeyTile>(o, logits, v, lane, [&](int step) {
#pragma unroll
      for (int n = 2 * step; n < 2 * step + 2; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          logits[n][e] = Exp2(fmaf(logits[n][e], scale_log2, shift_of[e >> 1]));
          added[e >> 1] += logits[n][e];
        }
      }
    });
#pragma unroll
    for (int i = 0; i < 2; ++i) sum[i] += added[i];
  }
};

template <int kWidth>
__device__ __forceinline__ void StoreRow(const OnlineSoftmax<kWidth>& state, const Row& row, int i,
                                         const AttentionOutputs& out, int dv, int lane) {
  const float sum = QuadSum(state.sum[i]);
  if (!row.valid) return;
  const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
  bf16* o = out.o + row.at * dv + 2 * (lane & 3);
#pragma unroll
  for (int n = 0; n < kWidth / 8; ++n) {
    if (n * 8 >= dv) break;
    *reinterpret_cast<uint32_t*>(o + n * 8) =
        Pack(state.o[n][2 * i] * inverse, state.o[n][2 * i + 1] * inverse);
  }
  if ((lane & 3) == 0) {
    out.lse[row.at] = sum > 0 ? (state.maximum[i] + log2f(sum)) * kLn2 : INFINITY;
  }
}

// Adds to keys_read how many keys the tile's queries see. Called by all threads of a block.
template <Branch kBranch>
__device__ __forceinline__ void CountKeysRead(const AttentionProblem& p, const QueryTile& at,
                                              const KeyTiles& tiles,
                                              unsigned long long* keys_read) {
  unsigned int keys = 0;
  for (int query = at.lane; query < at.queries; query += kWarp) {
    const KeyRange seen = KeysOf<kBranch>(p, at.b, at.t0 + query);
    const Row row{.valid = true, .query = query, .lo = seen.begin, .hi = seen.end, .at = 0};
    for (int i = at.warp; i < tiles.tiles; i += blockDim.x / kWarp) {
      keys += KeysSeen(TileAt<kBranch>(p, tiles, i), row);
    }
  }
  keys = __reduce_add_sync(0xffffffffu, keys);
  // The order of an integer sum does not matter.
  if (at.lane == 0 && keys > 0) atomicAdd(keys_read, static_cast<unsigned long long>(keys));
}

template <Branch kBranch, int kD>
__global__ void __launch_bounds__(ForwardRows(kD) / 16 * kWarp, QueryMajorBlocks(kD))
    AttentionForwardKernel(Begin begin, AttentionProblem p,
                           const __grid_constant__ AttentionBoxes boxes, AttentionOutputs out,
                           int queries_per_tile, int tiles_per_sequence) {
  static_assert(
      kFit<QueryMajorBlocks(kD), ForwardSharedBytes(kD, kLargeTiles<kD>, ForwardRows(kD), 0)>);
  const QueryTile at = QueryTileOf(p, queries_per_tile, tiles_per_sequence);
  extern __shared__ __align__(kTileAlignment) uint8_t shared[];
  bf16* q_tile = reinterpret_cast<bf16*>(shared);
  using Stages = KeyStages<kBranch, kD, StagesOf(kLargeTiles<kD>)>;
  bf16* const stage_tiles = q_tile + at.rows_padded * kD;
  auto* const barriers = reinterpret_cast<StageBarriers*>(stage_tiles + Stages::kElements);
  Stages stages(stage_tiles, p, boxes, at, barriers);
  begin.WaitForPrevious();
  stages.LoadQueries(p, at, queries_per_tile, {q_tile, nullptr}, nullptr);
  const KeyTiles tiles =
      PlanKeyTiles<kBranch>(p, at.b, at.g, at.t0, at.queries, queries_per_tile, barriers + 1);
  stages.Begin(p, tiles);

  const Row rows[2] = {RowOf<kBranch>(p, at, 0), RowOf<kBranch>(p, at, 1)};
  const CommonKeys common(rows);
  const float scale_log2 = p.scale * kLog2E;
  OnlineSoftmax<kDv<kD>> state;
  if (out.keys_read != nullptr) CountKeysRead<kBranch>(p, at, tiles, out.keys_read);
  for (int i = 0; i < tiles.tiles; ++i) {
    stages.Await(p, tiles, i);
    const KeyTile tile = TileAt<kBranch>(p, tiles, i);
    Rows16<kKeyTile> logits;
    ByRow<kD, kKeyTile>(logits, q_tile, stages.Keys(), at.warp, at.lane,
                        [&] { stages.Refill(p, tiles, i); });
    if (!common.Contain(tile)) HideUnseen(logits, tile, rows, at.lane);
    const bool takes[2] = {Takes(tile, rows[0]), Takes(tile, rows[1])};
    state.Add(logits, takes, scale_log2, stages.Values(), at.lane);
    stages.Release();
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) StoreRow(state, rows[i], i, out, p.dv, at.lane);
}

}  // namespace nsa::cuda
