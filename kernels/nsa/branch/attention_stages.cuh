// The keys and values of a query-major kernel on their way through shared memory: several tiles are
// there at a time, in stages.
//
// With three stages, one tile is multiplied while the next is already loaded and the one after that
// is being copied. On Hopper two barriers in shared memory belong to each stage: `full` completes
// when all threads' copies have arrived, `free` when all warps are done with the tile. So a warp
// group may begin its products with the next tile while another still works on this one. Elsewhere
// all threads meet once for each tile, and with two stages twice.
#pragma once

#include "kernels/nsa/branch/attention_tile.cuh"

namespace nsa::cuda {

// Number of key tiles (and of value tiles) that a query-major kernel has in shared memory.
__host__ __device__ constexpr int StagesOf(bool large_tiles) { return large_tiles ? 3 : 2; }

// The barriers of the stages.
struct StageBarriers {
  uint64_t full[3], free[3];
};
constexpr int kStageBarrierBytes = static_cast<int>(sizeof(StageBarriers));

__device__ __forceinline__ void InitBarrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(SharedAddress(barrier)), "r"(arrivals)
               : "memory");
}
__device__ __forceinline__ void Arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];\n" ::"r"(SharedAddress(barrier)) : "memory");
}
// Arrives once all copies that the thread has started so far are complete.
__device__ __forceinline__ void ArriveAfterCopies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];\n" ::"r"(SharedAddress(barrier))
               : "memory");
}
// Waits for the barrier's use number `use`, counted from 0.
__device__ __forceinline__ void AwaitUse(uint64_t* barrier, int use) {
#ifdef NSA_WGMMA
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra again;\n}\n" ::"r"(
          SharedAddress(barrier)),
      "r"(use & 1)
      : "memory");
#endif
}

// The stages of keys and values of a query-major kernel. A thread copies the same rows and columns
// of every tile: one chunk of a row, or where kD is 192 the same chunk of each panel of 64 columns,
// so that whole rows are copied by a power of two of threads. For each tile i: Await(i), first
// products, Refill(i), other products, Release(i).
template <Branch kBranch, int kD, int kStages>
struct KeyStages {
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

  __device__ __forceinline__ KeyStages(bf16* tiles, const AttentionProblem& p, const QueryTile& at,
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

  // Starts the copies of a tile; rows at and after its end become zero.
  __device__ __forceinline__ void Load(const AttentionProblem& p, const KeyTiles& tiles, int i) {
    if (i < tiles.tiles) {
      const KeyTile tile = TileAt<kBranch>(p, tiles, i);
      const int rows_apart = blockDim.x / kChunks;  // a multiple of 8, after which tiles repeat
      bf16 *const k_tile = Keys(i), *const v_tile = Values(i);
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
      if constexpr (kBarriers) ArriveAfterCopies(&barriers->full[i % kStages]);
    }
    if constexpr (!kBarriers) CommitCopies();
  }
  // Starts the first copies. All threads must have passed a barrier since the constructor.
  __device__ __forceinline__ void Begin(const AttentionProblem& p, const KeyTiles& tiles) {
    Load(p, tiles, 0);
    if constexpr (kStages == 3) Load(p, tiles, 1);
  }
  // Waits until tile i is loaded.
  __device__ __forceinline__ void Await(const AttentionProblem& p, const KeyTiles& tiles, int i) {
    if constexpr (kBarriers) {
      AwaitUse(&barriers->full[i % kStages], i / kStages);
      FenceTiles();
    } else {
      if constexpr (kStages == 2) Load(p, tiles, i + 1);
      WaitCopies<1>();
      FenceTiles();
      __syncthreads();
      // All threads are done with tile i − 1, whose stage tile i + 2 takes.
      if constexpr (kStages == 3) Load(p, tiles, i + 2);
    }
  }
  // Starts the copies of tile i + 2, which takes the stage of tile i − 1.
  __device__ __forceinline__ void Refill(const AttentionProblem& p, const KeyTiles& tiles, int i) {
    if constexpr (kBarriers) {
      if (i > 0 && i + 2 < tiles.tiles) {
        AwaitUse(&barriers->free[(i - 1) % kStages], (i - 1) / kStages);
      }
      Load(p, tiles, i + 2);
    }
  }
  // Call after the last use of tile i.
  __device__ __forceinline__ void Release(int i) {
    if constexpr (kBarriers) {
      if (threadIdx.x % kWarp == 0) Arrive(&barriers->free[i % kStages]);
    }
    if constexpr (kStages == 2) __syncthreads();
  }
  __device__ __forceinline__ bf16* Keys(int i) const { return k + i % kStages * kKeyTile * kD; }
  __device__ __forceinline__ bf16* Values(int i) const {
    return v + i % kStages * kKeyTile * kDv<kD>;
  }
};

}  // namespace nsa::cuda
