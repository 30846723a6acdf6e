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

#include <type_traits>

#include "common/nsa/attention_scratch.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/nsa/branch/attention_forward.cuh"
#include "kernels/nsa/branch/attention_rows.cuh"

namespace nsa::cuda {

// stats[row] = {lse · log2 e, Σ_c d_o[row, c] · o[row, c]}. dv/8 lanes per row, 16 bytes per lane.
static __global__ void StatsKernel(Begin begin, const bf16* o, const bf16* d_o, const float* lse,
                                   float2* stats, int64_t rows, int dv) {
  begin.WaitForPrevious();
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
//
// Tile i of keys in sm_90a code with heads of 64, as in attention_forward.cuh:
//
//   when                     | matrix unit        | warp group
//   -------------------------+--------------------+----------------------------------------------
//   tile i has arrived       | S = Q·Kᵀ           | thread 0 starts the copies of tile i + 2
//   S is complete            | dP = dO·Vᵀ         | hides keys, P = exp2(S − lse)
//   dP is complete           |                    | dS = P ∘ (dP − delta) of 16 keys
//   dS of 16 keys is there   | dq += dS·K of them | dS of the next 16 keys
//   dq is complete           |                    | is done with tile i

// Stores dq of one of a thread's two rows.
template <int kD>
__device__ __forceinline__ void StoreDq(const Rows16<kD>& dq, const AttentionProblem& p,
                                        const AttentionGradients& grad, const QueryTile& at,
                                        const Row& row, int i) {
  if (!row.valid) return;
  const int t = at.t0 + row.query;
  const auto head = static_cast<int>(row.at - (int64_t{1} * at.b * p.seq_len + t) * p.heads);
  const DqRow out(p, grad, at.b, t, head, at.g);
#pragma unroll
  for (int n = 0; n < kD / 8; ++n) {
    if (n * 8 >= p.dk) break;
    out.Store(n * 8 + 2 * (at.lane & 3), {dq[n][2 * i], dq[n][2 * i + 1]}, p.scale);
  }
}

// kStages is 3 with heads of 64 and less; kStagesOfCode means what the code has room for.
constexpr int kStagesOfCode = 0;
template <Branch kBranch, int kD, int kStages>
__global__ void __launch_bounds__(DqRows(kD) / 16 * kWarp, QueryMajorBlocks(kD))
    AttentionDqKernel(Begin begin, AttentionProblem p, const __grid_constant__ AttentionBoxes boxes,
                      AttentionGradients grad, int queries_per_tile, int tiles_per_sequence) {
  static_assert(
      kFit<QueryMajorBlocks(kD), DqSharedBytes(kD, StagesOf(kLargeTiles<kD>), DqRows(kD), 0)>);
  const QueryTile at = QueryTileOf(p, queries_per_tile, tiles_per_sequence);
  extern __shared__ __align__(kTileAlignment) uint8_t shared[];
  bf16* q_tile = reinterpret_cast<bf16*>(shared);
  bf16* do_tile = q_tile + at.rows_padded * kD;
  using Stages =
      KeyStages<kBranch, kD, kStages == kStagesOfCode ? StagesOf(kLargeTiles<kD>) : kStages>;
  bf16* const stage_tiles = do_tile + at.rows_padded * kDv<kD>;
  auto* const barriers = reinterpret_cast<StageBarriers*>(stage_tiles + Stages::kElements);
  Stages stages(stage_tiles, p, boxes, at, barriers);
  begin.WaitForPrevious();
  stages.LoadQueries(p, at, queries_per_tile, {q_tile, do_tile}, grad.d_o);
  const KeyTiles tiles =
      PlanKeyTiles<kBranch>(p, at.b, at.g, at.t0, at.queries, queries_per_tile, barriers + 1);
  stages.Begin(p, tiles);

  const Row rows[2] = {RowOf<kBranch>(p, at, 0), RowOf<kBranch>(p, at, 1)};
  const CommonKeys common(rows);
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
      if (!common.Contain(tile)) HideUnseen(weights, tile, rows, at.lane);
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
    TwoByRow<kD, kDv<kD>, kKeyTile>(
        weights, q_tile, stages.Keys(), d_weights, do_tile, stages.Values(), at.warp, at.lane,
        [&] { stages.Refill(p, tiles, i); }, weigh);
    Accumulate<kD, kKeyTile>(dq, weights, stages.Keys(), at.lane, [&](int step) {
#pragma unroll
      for (int n = 2 * step; n < 2 * step + 2; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) weights[n][e] *= d_weights[n][e] - stats[e >> 1].y;
      }
    });
    stages.Release();
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) StoreDq<kD>(dq, p, grad, at, rows[i], i);
}

// ---- dk, dv
//
// Tile i of at most 64 query rows in sm_90a code with heads of 64, as in attention_forward.cuh. The
// rows of the products are 64 keys, whose dk and dv stay in registers:
//
//   when                     | matrix unit        | warp group
//   -------------------------+--------------------+----------------------------------------------
//   tile i has arrived, all  | Sᵀ = K·Qᵀ          | each warp starts the copies of some tokens of
//     are done with i − 1    |                    |   tile i + 1
//   Sᵀ is complete           | dPᵀ = V·dOᵀ        | hides keys, Pᵀ = exp2(Sᵀ − lse)
//   dPᵀ is complete          |                    | dSᵀ = Pᵀ ∘ (dPᵀ − delta) of 16 rows
//   dSᵀ of 16 rows is there  | dv += Pᵀ·dO, dk += | dSᵀ of the next 16 rows
//                            |   dSᵀ·Q of them    |

// Floats per key in the partial sums: kD for dk, then kDv<kD> for dv.
template <int kD>
constexpr int kPartialRow = kBothWidths<kD>;

// Writes one thread's part of 16 keys · width columns: to bf16 rows of dk or dv, or to the partial
// sums from column `offset` on.
template <int kD, int kWidth>
__device__ __forceinline__ void StoreKeys(const Rows16<kWidth>& sum, float factor,
                                          const AttentionProblem& p, const DkvWork& work,
                                          const KeyRows& out, int offset, int b, int g, int warp,
                                          int lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = warp * 16 + lane / 4 + 8 * i;
    if (work.begin + row >= work.end) continue;
    const int key = work.begin + row;
    bf16* to = out.At(p, b, key, g);
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
      const int column = n * 8 + 2 * (lane & 3);
      if (n * 8 >= out.width) break;
      const float2 value = {sum[n][2 * i] * factor, sum[n][2 * i + 1] * factor};
      if (work.partial != nullptr) {
        *reinterpret_cast<float2*>(work.partial + row * kPartialRow<kD> + offset + column) = value;
      } else {
        const float2 turned = out.Turned(value, key, column);
        *reinterpret_cast<__nv_bfloat162*>(to + column) = __floats2bfloat162_rn(turned.x, turned.y);
      }
    }
  }
}

// Turns the logits of 16 keys × kRows rows into weights.
template <int kRows>
__device__ __forceinline__ void WeighRows(Rows16<kRows>& weights, const float2* row_stats,
                                          const RowPlan<kRows>& plan, const DkvWork& work,
                                          bool all_seen, float scale_log2, int warp, int lane) {
#pragma unroll
  for (int n = 0; n < kRows / 8; ++n) {
    const int row = n * 8 + 2 * (lane & 3);  // of elements 0 and 2; elements 1 and 3: row + 1
    const float4 stats = *reinterpret_cast<const float4*>(&row_stats[row]);
    if (!all_seen) {
      // One unsigned comparison checks both ends: a key before the first wraps to a large number.
      const int4 keys = *reinterpret_cast<const int4*>(&plan.keys[row]);
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
                                                  const float2* row_stats, int step, int lane) {
#pragma unroll
  for (int n = 2 * step; n < 2 * step + 2; ++n) {
    const int row = n * 8 + 2 * (lane & 3);
    const float delta[2] = {row_stats[row].y, row_stats[row + 1].y};
#pragma unroll
    for (int e = 0; e < 4; ++e) d_weights[n][e] = weights[n][e] * (d_weights[n][e] - delta[e & 1]);
  }
}

// Computes dk and dv of 64 · kGroups keys of group g over the rows of `work`; kDkvThreads · kGroups
// threads, one warp per 16 keys.
template <Branch kBranch, int kD, int kGroups>
__device__ void WalkRows(const AttentionProblem& p, const AttentionBoxes& boxes,
                         const AttentionGradients& grad, DkvWork work, int b, int g,
                         uint8_t* shared) {
  constexpr int kRows = kRowTile<kD>, kKeys = kGroups * kKeyTile;
  const int lane = threadIdx.x % kWarp, warp = WarpIndex();
  bf16* k_tile = reinterpret_cast<bf16*>(shared);
  bf16* v_tile = k_tile + kKeys * kD;
  LoadKeyTile<kD, kKeys>(k_tile, p.k, p.dk, p, b, g, work.begin, work.end);
  LoadKeyTile<kDv<kD>, kKeys>(v_tile, p.v, p.dv, p, b, g, work.begin, work.end);
  SetAllSeen<kBranch>(p, &work);
  using Tiles = std::conditional_t<kByBoxes<kD>, BoxRowTiles<kBranch, kD>,
                                   CopiedRowTiles<kBranch, kD, kGroups>>;
  const Tiles tiles(v_tile + kKeys * kDv<kD>, p, boxes, grad, work, b, g);
  tiles.Begin(p, work, b);

  const float scale_log2 = p.scale * kLog2E;
  Rows16<kD> dk = {};
  Rows16<kDv<kD>> dv = {};
  for (int i = 0; i < tiles.count; ++i) {
    tiles.Await(i);
    // One group refills while its products run. For two groups that is slower (measured).
    if constexpr (kGroups > 1) tiles.Refill(p, work, b, i);
    const auto refill = [&] {
      if constexpr (kGroups == 1) tiles.Refill(p, work, b, i);
    };
    const int stage = i % tiles.kStages;
    const bf16* q = tiles.q + stage * kRows * kD;
    const bf16* d_o = tiles.d_o + stage * kRows * kDv<kD>;
    const float2* stats = tiles.stats + stage * kRows;
    Rows16<kRows> weights, d_weights;
    const bool all_seen = tiles.planner.AllSeen(work, i * tiles.planner.tokens);
    const auto weigh = [&] {
      WeighRows<kRows>(weights, stats, tiles.PlanOf(i), work, all_seen, scale_log2, warp, lane);
    };
    TwoByRow<kD, kDv<kD>, kRows>(weights, k_tile, q, d_weights, v_tile, d_o, warp, lane, refill,
                                 weigh);
    const auto differentiate = [&](int step) {
      DifferentiateRows<kRows>(d_weights, weights, stats, step, lane);
    };
    TwoAccumulate<kDv<kD>, kD, kRows>(dv, weights, d_o, dk, d_weights, q, lane, differentiate,
                                      [] {});
  }
  StoreKeys<kD, kD>(dk, p.scale, p, work, grad.dk, 0, b, g, warp, lane);
  StoreKeys<kD, kDv<kD>>(dv, 1.0f, p, work, grad.dv, kD, b, g, warp, lane);
}

}  // namespace nsa::cuda
