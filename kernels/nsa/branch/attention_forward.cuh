// Forward of the three attention branches: flash attention over the keys of a query tile (Dao,
// arXiv 2307.08691), one warp per 16 rows.
//
// Shared memory: the query tile, stages of 64 keys and values, and for the selected branch the
// union of chosen blocks. Each warp keeps 16 × 64 logits and 16 × dv outputs in registers; the keys
// of the next tile are copied while this one is multiplied. The kernel is limited by the matrix
// unit and, where heads are 64 wide, equally by exponentials: 4 · rows · keys · (dk + dv)/2
// operations per tile against rows · keys exponentials.
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

template <int kD>
__host__ __device__ constexpr int ForwardSharedBytes(bool large_tiles, int rows_padded,
                                                     int union_bytes) {
  return 2 * rows_padded * kD + 2 * StagesOf(large_tiles) * kKeyTile * kBothWidths<kD> +
         kStageBarrierBytes + union_bytes;
}

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
  float sum[2] = {0, 0};
  Rows16<kWidth> o = {};

  // Turns logits into weights and adds them to the state, for the rows that take the tile.
  __device__ __forceinline__ void Add(Rows16<kKeyTile>& logits, const bool (&takes)[2],
                                      float scale_log2, const bf16* v, int lane) {
    float shrink[2], shift[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float top = -INFINITY;
#pragma unroll
      for (int n = 0; n < kKeyTile / 8; ++n) {
        top = fmaxf(top, fmaxf(logits[n][2 * i], logits[n][2 * i + 1]));
      }
      top = QuadMax(top) * scale_log2;
      const float seen = takes[i] && top > maximum[i] + kMaximumSlack ? top : maximum[i];
      // A row that has seen no key yet gets a finite reference, to avoid (−inf) − (−inf). A shift
      // of +inf makes every weight 0.
      const float reference = seen == -INFINITY ? 0.0f : seen;
      shrink[i] = Exp2(maximum[i] - reference);
      if (seen == maximum[i]) shrink[i] = 1.0f;
      maximum[i] = seen;
      shift[i] = takes[i] ? reference : INFINITY;
    }
    if (__any_sync(0xffffffffu, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
      for (int n = 0; n < kWidth / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o[n][e] *= shrink[e >> 1];
      }
    }
    float added[2] = {0, 0};
    Accumulate<kWidth, kKeyTile>(o, logits, v, lane, [&](int step) {
#pragma unroll
      for (int n = 2 * step; n < 2 * step + 2; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          logits[n][e] = Exp2(fmaf(logits[n][e], scale_log2, -shift[e >> 1]));
          added[e >> 1] += logits[n][e];
        }
      }
    });
#pragma unroll
    for (int i = 0; i < 2; ++i) sum[i] = sum[i] * shrink[i] + added[i];
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

// Counts the keys that a thread's rows see, once for all heads of a group and all lanes of a row.
struct KeyCount {
  bool counts[2];
  unsigned int keys = 0;

  __device__ __forceinline__ KeyCount(const AttentionProblem& p, const QueryTile& at,
                                      const Row (&rows)[2], bool wanted) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = at.warp * 16 + at.lane / 4 + 8 * i;
      counts[i] = wanted && (at.lane & 3) == 0 && row == rows[i].query * p.h;
    }
  }
  __device__ __forceinline__ void Add(const KeyTile& tile, const Row (&rows)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (counts[i]) keys += KeysSeen(tile, rows[i]);
    }
  }
};

template <Branch kBranch, int kD>
__global__ void __launch_bounds__(kD > 64 ? 384 : 256, kD > 64 ? 1 : 2)
    AttentionForwardKernel(Begin begin, AttentionProblem p, AttentionOutputs out,
                           int queries_per_tile, int tiles_per_sequence) {
  const QueryTile at = QueryTileOf(p, queries_per_tile, tiles_per_sequence);
  extern __shared__ __align__(kTileAlignment) uint8_t shared[];
  bf16* q_tile = reinterpret_cast<bf16*>(shared);
  using Stages = KeyStages<kBranch, kD, StagesOf(kLargeTiles<kD>)>;
  bf16* const stage_tiles = q_tile + at.rows_padded * kD;
  auto* const barriers = reinterpret_cast<StageBarriers*>(stage_tiles + Stages::kElements);
  Stages stages(stage_tiles, p, at, barriers);
  begin.WaitForPrevious();
  LoadQueryTile<kD>(q_tile, p.q, p.dk, p, at.b, at.g, at.t0, at.queries, at.rows_padded);
  const KeyTiles tiles =
      PlanKeyTiles<kBranch>(p, at.b, at.g, at.t0, at.queries, queries_per_tile, barriers + 1);
  if constexpr (Stages::kBarriers) __syncthreads();
  stages.Begin(p, tiles);

  const Row rows[2] = {RowOf<kBranch>(p, at, 0), RowOf<kBranch>(p, at, 1)};
  const float scale_log2 = p.scale * kLog2E;
  OnlineSoftmax<kDv<kD>> state;
  KeyCount count(p, at, rows, out.keys_read != nullptr);
  for (int i = 0; i < tiles.tiles; ++i) {
    stages.Await(p, tiles, i);
    const KeyTile tile = TileAt<kBranch>(p, tiles, i);
    Rows16<kKeyTile> logits;
    ByRow<kD, kKeyTile>(logits, q_tile, stages.Keys(i), at.warp, at.lane,
                        [&] { stages.Refill(p, tiles, i); });
    HideUnseen(logits, tile, rows, at.lane);
    count.Add(tile, rows);
    const bool takes[2] = {Takes(tile, rows[0]), Takes(tile, rows[1])};
    state.Add(logits, takes, scale_log2, stages.Values(i), at.lane);
    stages.Release(i);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) StoreRow(state, rows[i], i, out, p.dv, at.lane);
  if (out.keys_read != nullptr) {
    const unsigned int keys_seen = __reduce_add_sync(0xffffffffu, count.keys);
    // The order of an integer sum does not matter.
    if (at.lane == 0 && keys_seen > 0)
      atomicAdd(out.keys_read, static_cast<unsigned long long>(keys_seen));
  }
}

}  // namespace nsa::cuda
