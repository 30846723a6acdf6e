// The keys and values of a query-major kernel on their way through shared memory: several tiles are
// there at a time, in stages.
//
// With three stages, one tile is multiplied while the next is already loaded and the one after that
// is being copied. On Hopper two barriers in shared memory belong to each stage: `full` completes
// when the tile has arrived, `free` when all warps are done with it. So a warp group may begin its
// products with the next tile while another still works on this one. Elsewhere all threads meet
// once for each tile, and with two stages twice.
//
// Tiles of 64 columns are copied by Hopper's copy engine (cuda/tensor_box.cuh), which one thread
// starts; wider ones, whose panels alternate, by all threads.
#pragma once

#include <type_traits>

#include "kernels/nsa/branch/attention_boxes.cuh"
#include "kernels/nsa/branch/attention_tile.cuh"

namespace nsa::cuda {

// The barriers of the stages, and the one that completes when the query tile has arrived.
struct StageBarriers {
  uint64_t full[3], free[3], queries;
};
static_assert(sizeof(StageBarriers) == kStageBarrierBytes);

// The query tile of a thread block in shared memory.
struct QueryTiles {
  bf16* q;
  bf16* d_o;  // null in forward
};

// Which stage a tile is in.
template <int kStages>
struct StageCursor {
  int stage = 0;
  int round = 0;  // uses of this stage before

  // The stage of the tile `distance` < kStages tiles later.
  __device__ __forceinline__ int After(int distance) const {
    const int later = stage + distance;
    return later < kStages ? later : later - kStages;
  }
  __device__ __forceinline__ void Advance() {
    stage = After(1);
    if (stage == 0) ++round;
  }
  // The tile before has the stage of the tile kStages − 1 later. Number of uses of that stage
  // before the earlier tile.
  __device__ __forceinline__ int RoundBefore() const { return stage == 0 ? round - 1 : round; }
};

// The stages of keys and values of a query-major kernel, filled by all threads. A thread copies the
// same rows and columns of every tile: one chunk of a row, or where kD is 192 the same chunk of
// each panel of 64 columns, so that whole rows are copied by a power of two of threads. For each
// tile i: Await(i), first products, Refill(i), other products, Release().
template <Branch kBranch, int kD, int kStages>
struct CopiedStages {
  static constexpr int kElements = kStages * kKeyTile * kBothWidths<kD>;
  static constexpr int kChunks = kD > 128 ? 8 : Tile<kD>::kChunks;  // of a row, in as many threads
  static constexpr int kKeyCopies = Tile<kD>::kChunks / kChunks;    // of a thread, in a row
  static constexpr int kValueCopies = Tile<kDv<kD>>::kChunks / kChunks;
  static constexpr bool kBarriers = kByWarpGroup<kD> && kStages == 3;

  bf16* k;                      // kStages tiles
  bf16* v;                      // kStages tiles
  const bf16 *k_from, *v_from;  // the thread's column of row 0
  StageBarriers* barriers;
  int first_row;   // row of key 0 in [B, keys, G]
  int row, chunk;  // the first of the thread's rows
  bool k_column, v_column[kValueCopies];
  StageCursor<kStages> cursor;

  __device__ __forceinline__ CopiedStages(bf16* tiles, const AttentionProblem& p,
                                          const AttentionBoxes& /*boxes*/, const QueryTile& at,
                                          StageBarriers* stage_barriers)
      : k(tiles),
        v(tiles + kStages * kKeyTile * kD),
        barriers(stage_barriers),
        first_row(at.b * p.keys * p.groups + at.g),
        row(threadIdx.x / kChunks),
        chunk(threadIdx.x % kChunks),
        k_column(chunk * 8 < p.dk) {
    k_from = p.k + chunk * 8;
    v_from = p.v + chunk * 8;
#pragma unroll
    for (int c = 0; c < kValueCopies; ++c) v_column[c] = (chunk + c * kChunks) * 8 < p.dv;
    if constexpr (kBarriers) {
      for (int stage = threadIdx.x; stage < kStages; stage += blockDim.x) {
        InitBarrier(&barriers->full[stage], blockDim.x);
        InitBarrier(&barriers->free[stage], blockDim.x / kWarp);
      }
    }
  }

  // Starts the copies of tile i, which is `distance` after the cursor's; rows at and after its end
  // become zero.
  __device__ __forceinline__ void Load(const AttentionProblem& p, const KeyTiles& tiles, int i,
                                       int distance) {
    if (i < tiles.tiles) {
      const KeyTile tile = TileAt<kBranch>(p, tiles, i);
      const int rows_apart = blockDim.x / kChunks;  // a multiple of 8, after which tiles repeat
      const int stage = cursor.After(distance);
      bf16 *const k_tile = k + stage * kKeyTile * kD, *const v_tile =
                                                          v + stage * kKeyTile * kDv<kD>;
      int to = Tile<kD>::Offset(row, chunk), v_to = Tile<kDv<kD>>::Offset(row, chunk);
      for (int r = row; r < kKeyTile; r += rows_apart) {
        const int key = tile.begin + r, from = first_row + key * p.groups;
        const bool valid = key < tile.end;
        const bf16* const k_row = RowPointer(k_from, from, p.dk);
#pragma unroll
        for (int c = 0; c < kKeyCopies; ++c) {
          CopyAsync16(k_tile + to + c * kPanel, k_row + c * kPanelColumns, valid && k_column);
        }
        const bf16* const v_row = RowPointer(v_from, from, p.dv);
        bf16* const v_at = v_tile + (kDv<kD> == kD ? to : v_to);
#pragma unroll
        for (int c = 0; c < kValueCopies; ++c) {
          CopyAsync16(v_at + c * kPanel, v_row + c * kPanelColumns, valid && v_column[c]);
        }
        to += rows_apart * kD, v_to += rows_apart * kDv<kD>;
      }
      if constexpr (kBarriers) ArriveAfterCopies(&barriers->full[stage]);
    }
    if constexpr (!kBarriers) CommitCopies();
  }
  // Starts the copies of the query tile. `d_o` is the tensor.
  __device__ __forceinline__ void LoadQueries(const AttentionProblem& p, const QueryTile& at,
                                              int /*queries_per_tile*/, const QueryTiles& to,
                                              const bf16* d_o) const {
    LoadQueryTile<kD>(to.q, p.q, p.dk, p, at.b, at.g, at.t0, at.queries, at.rows_padded);
    if (to.d_o == nullptr) return;
    LoadQueryTile<kDv<kD>>(to.d_o, d_o, p.dv, p, at.b, at.g, at.t0, at.queries, at.rows_padded);
  }
  // Starts the first copies of keys, after LoadQueries(). All threads call.
  __device__ __forceinline__ void Begin(const AttentionProblem& p, const KeyTiles& tiles) {
    if constexpr (kBarriers) __syncthreads();
    Load(p, tiles, 0, 0);
    if constexpr (kStages == 3) Load(p, tiles, 1, 1);
  }
  // Waits until tile i is loaded, and the query tile.
  __device__ __forceinline__ void Await(const AttentionProblem& p, const KeyTiles& tiles, int i) {
    if constexpr (kBarriers) {
      AwaitUse(&barriers->full[cursor.stage], cursor.round);
      FenceTiles();
    } else {
      if constexpr (kStages == 2) Load(p, tiles, i + 1, 1);
      WaitCopies<1>();
      FenceTiles();
      __syncthreads();
      // All threads are done with tile i − 1, whose stage tile i + 2 takes.
      if constexpr (kStages == 3) Load(p, tiles, i + 2, 2);
    }
  }
  // Starts the copies of tile i + 2, which takes the stage of tile i − 1.
  __device__ __forceinline__ void Refill(const AttentionProblem& p, const KeyTiles& tiles, int i) {
    if constexpr (kBarriers) {
      if (i > 0 && i + 2 < tiles.tiles) {
        AwaitUse(&barriers->free[cursor.After(2)], cursor.RoundBefore());
      }
      Load(p, tiles, i + 2, 2);
    }
  }
  // Call after the last use of a tile.
  __device__ __forceinline__ void Release() {
    if constexpr (kBarriers) {
      if (threadIdx.x % kWarp == 0) Arrive(&barriers->free[cursor.stage]);
    }
    if constexpr (kStages == 2) __syncthreads();
    cursor.Advance();
  }
  // Of the tile between Await() and Release().
  __device__ __forceinline__ bf16* Keys() const { return k + cursor.stage * kKeyTile * kD; }
  __device__ __forceinline__ bf16* Values() const { return v + cursor.stage * kKeyTile * kDv<kD>; }
};

// The same, filled by the copy engine. A tile has the keys that follow its own too, which are
// hidden.
template <Branch kBranch, int kD, int kStages>
struct BoxStages {
  static constexpr int kElements = kStages * kKeyTile * kBothWidths<kD>;
  static constexpr int kTileElements = kKeyTile * kD;
  static constexpr int kRowBytes = kD * static_cast<int>(sizeof(bf16));
  static_assert(kD == kPanelColumns && kDv<kD> == kD && kStages == 3);

  bf16* k;  // kStages tiles
  bf16* v;  // kStages tiles
  StageBarriers* barriers;
  const AttentionBoxes& boxes;
  int b, g;
  StageCursor<kStages> cursor;

  __device__ __forceinline__ BoxStages(bf16* tiles, const AttentionProblem& /*p*/,
                                       const AttentionBoxes& tensor_boxes, const QueryTile& at,
                                       StageBarriers* stage_barriers)
      : k(tiles),
        v(tiles + kStages * kTileElements),
        barriers(stage_barriers),
        boxes(tensor_boxes),
        b(at.b),
        g(at.g) {
    if (threadIdx.x != 0) return;
    for (int stage = 0; stage < kStages; ++stage) {
      InitBarrier(&barriers->full[stage], 1);
      InitBarrier(&barriers->free[stage], blockDim.x / kWarp);
    }
    InitBarrier(&barriers->queries, 1);
    FenceBarriers();
  }

  // Rows of the tile after the box's have any contents; none of their results is used.
  __device__ __forceinline__ void LoadQueries(const AttentionProblem& p, const QueryTile& at,
                                              int queries_per_tile, const QueryTiles& to,
                                              const bf16* /*d_o*/) const {
    if (threadIdx.x != 0) return;
    const int tensors = to.d_o == nullptr ? 1 : 2;
    ArriveExpecting(&barriers->queries, tensors * queries_per_tile * p.h * kRowBytes);
    LoadBox(to.q, boxes.q, b, at.t0, g * p.h, &barriers->queries);
    if (to.d_o != nullptr) LoadBox(to.d_o, boxes.d_o, b, at.t0, g * p.h, &barriers->queries);
  }

  __device__ __forceinline__ void Load(const AttentionProblem& p, const KeyTiles& tiles, int i,
                                       int stage) const {
    const int key = TileAt<kBranch>(p, tiles, i).begin;
    uint64_t* const full = &barriers->full[stage];
    ArriveExpecting(full, 2 * kKeyTile * kRowBytes);
    LoadBox(k + stage * kTileElements, boxes.k, b, key, g, full);
    LoadBox(v + stage * kTileElements, boxes.v, b, key, g, full);
  }
  __device__ __forceinline__ void Begin(const AttentionProblem& p, const KeyTiles& tiles) const {
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int i = 0; i < min(kStages - 1, tiles.tiles); ++i) Load(p, tiles, i, i);
    }
    AwaitUse(&barriers->queries, 0);
  }
  __device__ __forceinline__ void Await(const AttentionProblem&, const KeyTiles&, int) const {
    AwaitUse(&barriers->full[cursor.stage], cursor.round);
  }
  __device__ __forceinline__ void Refill(const AttentionProblem& p, const KeyTiles& tiles,
                                         int i) const {
    if (threadIdx.x != 0 || i + 2 >= tiles.tiles) return;
    const int stage = cursor.After(2);
    if (i > 0) AwaitUse(&barriers->free[stage], cursor.RoundBefore());
    Load(p, tiles, i + 2, stage);
  }
  __device__ __forceinline__ void Release() {
    if (threadIdx.x % kWarp == 0) Arrive(&barriers->free[cursor.stage]);
    cursor.Advance();
  }
  __device__ __forceinline__ bf16* Keys() const { return k + cursor.stage * kTileElements; }
  __device__ __forceinline__ bf16* Values() const { return v + cursor.stage * kTileElements; }
};

template <Branch kBranch, int kD, int kStages>
using KeyStages = std::conditional_t<kByBoxes<kD>, BoxStages<kBranch, kD, kStages>,
                                     CopiedStages<kBranch, kD, kStages>>;

}  // namespace nsa::cuda
