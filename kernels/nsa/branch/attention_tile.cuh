// Code shared by the CUDA kernels of the three attention branches: the problem description, which
// query sees which keys, and how query rows are packed into tiles.
//
// A query tile is a few consecutive tokens times the h heads of one group. All its rows use the
// same keys, so one load of K and V serves up to 128 rows of the matrix unit; a group of 6 heads
// leaves 2 of them unused (21 tokens · 6 heads = 126 rows). Row r of a tile is head r % h of token
// r / h. Keys are processed in tiles of 64.
#pragma once

#include <climits>

#include "common/nsa/visibility.h"
#include "kernels/cuda/util.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/nsa/branch/tile_sizes.h"

namespace nsa::cuda {

// Kernels are compiled for kD, the columns of a tile of queries or keys: max(dk, dv), or 192 where
// dk is 192. kDv: the columns of a tile of values or outputs.
template <int kD>
constexpr int kDv = ValueColumns(kD);
template <int kD>
constexpr int kBothWidths = BothColumns(kD);

// Pointers and sizes of one call, passed to kernels by value. Includes what a BranchRule reads.
struct AttentionProblem {
  int batch, seq_len, heads, groups, h;
  int h_inverse;     // see QueryOf
  int keys;          // rows of k and v per group: S, or S_cmp
  int l, d, window;  // compressed, window
  int l_sel, n_sel, sel_blocks;
  int dk, dv;            // padded with zeros to kD and kDv<kD> columns in shared memory
  float scale;           // of the logits
  const bf16* q;         // [B, S, H, dk]
  const bf16* k;         // [B, keys, G, dk]
  const bf16* v;         // [B, keys, G, dv]
  const int* blocks;     // [B, S, G, n], selected only
  const int* doc_start;  // [B, S] or null
};

// The token of a tile's row: row / h for rows below 256, by multiplication with HInverse(h), since
// an integer division takes about twenty instructions.
__host__ __device__ constexpr int HInverse(int h) { return (1 << 16) / h + 1; }
__device__ __forceinline__ int QueryOf(const AttentionProblem& p, int row) {
  return row * p.h_inverse >> 16;
}

// The first token of t's document.
__device__ __forceinline__ int DocStart(const AttentionProblem& p, int b, int t) {
  return p.doc_start == nullptr ? 0 : p.doc_start[int64_t{1} * b * p.seq_len + t];
}

// The keys that the query at t may see. For the selected branch this is the range before the choice
// of blocks is applied.
template <Branch kBranch>
__device__ __forceinline__ KeyRange KeysOf(const AttentionProblem& p, int b, int t) {
  return BranchRule<kBranch>::Keys(p, t, DocStart(p, b, t));
}

// Loads rows [begin, begin + kRows) of group g of k or v ([B, keys, G, width]); rows at and after
// `end` and columns from `width` on become zero.
template <int kD, int kRows = kKeyTile>
__device__ __forceinline__ void LoadKeyTile(bf16* tile, const bf16* source, int width,
                                            const AttentionProblem& p, int b, int g, int begin,
                                            int end) {
  constexpr int kChunks = Tile<kD>::kChunks;
  const bf16* base = source + (int64_t{1} * b * p.keys * p.groups + g) * width;
  for (int i = threadIdx.x; i < kRows * kChunks; i += blockDim.x) {
    const int row = i / kChunks, chunk = i % kChunks;
    const bool valid = begin + row < end && chunk * 8 < width;
    const bf16* from =
        valid ? base + int64_t{1} * (begin + row) * p.groups * width + chunk * 8 : source;
    CopyAsync16(Tile<kD>::At(tile, row, chunk), from, valid);
  }
}

// Loads the rows of a query tile (tokens t0 … t0 + queries − 1, the h heads of group g). Rows after
// them, up to `rows_padded`, become zero.
template <int kD>
__device__ __forceinline__ void LoadQueryTile(bf16* tile, const bf16* source, int width,
                                              const AttentionProblem& p, int b, int g, int t0,
                                              int queries, int rows_padded) {
  constexpr int kChunks = Tile<kD>::kChunks;
  const bf16* base = source + ((int64_t{1} * b * p.seq_len + t0) * p.heads + g * p.h) * width;
  for (int i = threadIdx.x; i < rows_padded * kChunks; i += blockDim.x) {
    const int row = i / kChunks, chunk = i % kChunks;
    const int query = QueryOf(p, row), head = row - query * p.h;
    CopyAsync16(Tile<kD>::At(tile, row, chunk), base + (query * p.heads + head) * width + chunk * 8,
                query < queries && chunk * 8 < width);
  }
}

// The key tiles that a query tile iterates over. Window and compressed: one contiguous range of
// keys. Selected: the union of the blocks chosen by the tile's queries, ascending, with a mask of
// the queries that chose each block.
struct KeyTiles {
  int first, last;  // keys, [first, last)
  int tiles;
  int parts;               // selected: key tiles per block
  const int* union_ids;    // selected: block ids in shared memory
  const uint32_t* takers;  // selected: bit q of takers[u]: query q of the tile chose union_ids[u]
};

struct KeyTile {
  int begin, end;
  uint32_t takers;  // mask of queries that use the tile; all ones: every query
};

template <Branch kBranch>
__device__ __forceinline__ KeyTile TileAt(const AttentionProblem& p, const KeyTiles& tiles, int i) {
  if constexpr (kBranch == kSel) {
    const int u = tiles.parts == 1 ? i : i / tiles.parts;
    const int block = tiles.union_ids[u], from = block * p.l_sel;
    const int begin = from + (i - u * tiles.parts) * kKeyTile;
    const int end = min(min(begin + kKeyTile, from + p.l_sel), tiles.last);
    return {begin, end, tiles.takers[u]};
  } else {
    const int begin = tiles.first + i * kKeyTile;
    return {begin, min(begin + kKeyTile, tiles.last), 0xffffffffu};
  }
}

// Builds the union of the blocks that tokens t0 … t0 + queries − 1 of group g chose. All threads of
// the block must call it; it ends with a barrier. Returns the number of blocks in the union.
__device__ inline int BuildUnion(const AttentionProblem& p, int b, int g, int t0, int queries,
                                 int capacity, int* ids, uint32_t* takers, uint32_t* bits,
                                 int* ranks) {
  const int words = CeilDiv(p.sel_blocks, 32);
  const int* rows = p.blocks + ((int64_t{1} * b * p.seq_len + t0) * p.groups + g) * p.n_sel;
  const int64_t row_stride = int64_t{1} * p.groups * p.n_sel;
  for (int i = threadIdx.x; i < words; i += blockDim.x) bits[i] = 0;
  for (int i = threadIdx.x; i < capacity; i += blockDim.x) takers[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < queries * p.n_sel; i += blockDim.x) {
    const int block = rows[(i / p.n_sel) * row_stride + i % p.n_sel];
    if (block >= 0) atomicOr(&bits[block >> 5], 1u << (block & 31));
  }
  __syncthreads();
  // ranks[w] ← number of set bits before word w. One warp scans 32 words at a time.
  if (threadIdx.x < kWarp) {
    int before = 0;
    for (int base = 0; base < words; base += kWarp) {
      const int w = base + threadIdx.x;
      const int count = w < words ? __popc(bits[w]) : 0;
      int inclusive = count;
      for (int offset = 1; offset < kWarp; offset <<= 1) {
        const int other = __shfl_up_sync(0xffffffffu, inclusive, offset);
        if (static_cast<int>(threadIdx.x) >= offset) inclusive += other;
      }
      if (w < words) ranks[w] = before + inclusive - count;
      before += __shfl_sync(0xffffffffu, inclusive, kWarp - 1);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < queries * p.n_sel; i += blockDim.x) {
    const int query = i / p.n_sel;
    const int block = rows[query * row_stride + i % p.n_sel];
    if (block < 0) continue;
    const int word = block >> 5;
    const int u = ranks[word] + __popc(bits[word] & ((1u << (block & 31)) - 1));
    ids[u] = block;
    atomicOr(&takers[u], 1u << query);
  }
  const int last = words - 1;
  const int total = ranks[last] + __popc(bits[last]);
  __syncthreads();
  return total;
}

// The key tiles of a query tile. `scratch` holds UnionBytes() for the selected branch.
template <Branch kBranch>
__device__ __forceinline__ KeyTiles PlanKeyTiles(const AttentionProblem& p, int b, int g, int t0,
                                                 int queries, int queries_per_tile, void* scratch) {
  KeyTiles tiles{};
  tiles.last = KeysOf<kBranch>(p, b, t0 + queries - 1).end;
  if constexpr (kBranch == kSel) {
    const int capacity = UnionCapacity(p.sel_blocks, p.n_sel, queries_per_tile);
    int* ids = static_cast<int*>(scratch);
    auto* takers = reinterpret_cast<uint32_t*>(ids + capacity);
    uint32_t* bits = takers + capacity;
    int* ranks = reinterpret_cast<int*>(bits + CeilDiv(p.sel_blocks, 32));
    const int blocks =
        Uniform(BuildUnion(p, b, g, t0, queries, capacity, ids, takers, bits, ranks));
    tiles.union_ids = ids;
    tiles.takers = takers;
    tiles.parts = CeilDiv(p.l_sel, kKeyTile);
    tiles.tiles = blocks * tiles.parts;
  } else {
    // Both ends of a row's range increase with t, so the first and the last token give the bounds.
    tiles.first = KeysOf<kBranch>(p, b, t0).begin;
    tiles.tiles = max(0, CeilDiv(tiles.last - tiles.first, kKeyTile));
  }
  return tiles;
}

// One of the two tile rows that a thread holds in its accumulators.
struct Row {
  bool valid;
  int query;   // within the tile
  int lo, hi;  // keys it sees
  int64_t at;  // row of [B, S, H]
};

template <Branch kBranch>
__device__ __forceinline__ Row RowAt(const AttentionProblem& p, int b, int g, int t0, int queries,
                                     int r) {
  Row row{};
  row.query = QueryOf(p, r);
  row.valid = row.query < queries;
  if (!row.valid) return row;
  const int t = t0 + row.query;
  const KeyRange keys = KeysOf<kBranch>(p, b, t);
  row.lo = keys.begin;
  row.hi = keys.end;
  row.at = (int64_t{1} * b * p.seq_len + t) * p.heads + g * p.h + r - row.query * p.h;
  return row;
}

__device__ __forceinline__ bool Takes(const KeyTile& tile, const Row& row) {
  return row.valid && ((tile.takers >> (row.query & 31)) & 1u) != 0;
}

// Number of keys of the tile that the row sees.
__device__ __forceinline__ int KeysSeen(const KeyTile& tile, const Row& row) {
  return Takes(tile, row) ? max(0, min(row.hi, tile.end) - max(row.lo, tile.begin)) : 0;
}

// Whether the tile has 64 keys and every valid row of the warp has all of them in its range: then
// no key needs masking.
__device__ __forceinline__ bool Inside(const KeyTile& tile, const Row (&rows)[2]) {
  bool inside = tile.end - tile.begin == kKeyTile;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    inside = inside && (!rows[i].valid || (rows[i].lo <= tile.begin && rows[i].hi >= tile.end));
  }
  return __all_sync(0xffffffffu, inside);
}

// The same for many tiles and the same rows: the keys that all valid rows of the warp have in their
// ranges.
struct CommonKeys {
  int lo, hi;

  __device__ __forceinline__ explicit CommonKeys(const Row (&rows)[2]) : lo(INT_MIN), hi(INT_MAX) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!rows[i].valid) continue;
      lo = max(lo, rows[i].lo);
      hi = min(hi, rows[i].hi);
    }
    lo = __reduce_max_sync(0xffffffffu, lo);
    hi = __reduce_min_sync(0xffffffffu, hi);
  }
  __device__ __forceinline__ bool Contain(const KeyTile& tile) const {
    return tile.end - tile.begin == kKeyTile && lo <= tile.begin && hi >= tile.end;
  }
};

// Sets the logits of keys that a row does not see to −inf.
__device__ __forceinline__ void HideUnseen(float (&logits)[kKeyTile / 8][4], const KeyTile& tile,
                                           const Row (&rows)[2], int lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    // One unsigned comparison checks both ends: a key before lo wraps around to a large number.
    const int first = tile.begin + 2 * (lane & 3) - rows[i].lo;
    const auto seen = static_cast<unsigned int>(max(0, min(rows[i].hi, tile.end) - rows[i].lo));
#pragma unroll
    for (int n = 0; n < kKeyTile / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (static_cast<unsigned int>(first + n * 8 + e) >= seen) logits[n][2 * i + e] = -INFINITY;
      }
    }
  }
}

// The query tile that a thread block of a query-major kernel processes.
struct QueryTile {
  int lane, warp;
  int b, g;
  int t0, queries;  // tokens t0 … t0 + queries − 1
  int rows_padded;
};

// The last tiles of a sequence, which see the most keys, get the first thread blocks.
__device__ __forceinline__ QueryTile QueryTileOf(const AttentionProblem& p, int queries_per_tile,
                                                 int tiles_per_sequence) {
  QueryTile tile{};
  tile.lane = threadIdx.x % kWarp;
  tile.warp = WarpIndex();
  const int bg = blockIdx.x / tiles_per_sequence;
  tile.b = bg / p.groups;
  tile.g = bg % p.groups;
  tile.t0 = (tiles_per_sequence - 1 - blockIdx.x % tiles_per_sequence) * queries_per_tile;
  tile.queries = min(queries_per_tile, p.seq_len - tile.t0);
  tile.rows_padded = blockDim.x / kWarp * 16;
  return tile;
}

// The i-th of the two rows that a thread holds.
template <Branch kBranch>
__device__ __forceinline__ Row RowOf(const AttentionProblem& p, const QueryTile& tile, int i) {
  return RowAt<kBranch>(p, tile.b, tile.g, tile.t0, tile.queries,
                        tile.warp * 16 + tile.lane / 4 + 8 * i);
}

// The address of row `row` in rows of `width` bf16, by one instruction: the compiler would take up
// to six.
__device__ __forceinline__ const bf16* RowPointer(const bf16* first, int row, int width) {
  const bf16* at;
  asm("mad.wide.s32 %0, %1, %2, %3;\n" : "=l"(at) : "r"(row), "r"(2 * width), "l"(first));
  return at;
}

// Whether there is room for large tiles. With heads of 128 and wider there is only where warp
// groups multiply: they read tiles from shared memory, so their products need fewer registers than
// those of mma.sync, and such a GPU has more shared memory than an A100. Host code asks
// LargeTiles() (attention_launch.cuh), because it does not know which code will run.
template <int kD>
constexpr bool kLargeTiles = kD <= 64 || kHasWgmma;

// Whether shared memory has room for kBlocks thread blocks with kBytes each on a multiprocessor of
// the GPU that this code is compiled for: Hopper, or an A100. Host code is as that for an A100.
template <int kBlocks, int kBytes>
constexpr bool kFit = BlocksIn(kHasWgmma ? kSharedOfHopperMultiprocessor
                                         : kSharedOfA100Multiprocessor,
                               kBytes) >= kBlocks;

}  // namespace nsa::cuda
