// How the attention kernels of the three branches cut their work into tiles, how much dynamic
// shared memory a thread block takes for them, and how many thread blocks are meant to share a
// multiprocessor. Pure: the kernels, nsa-bench's budget and the tests all use these functions.
//
// `width` is the columns of a tile of queries or keys, max(d_k, d_v): 16, 32, 64, 128 or 192. All
// sizes are bytes. `large_tiles` is true where there is room for them: with heads of 64 and less,
// and in sm_90a code (kLargeTiles of attention_tile.cuh).
//
// Thread blocks of a multiprocessor are what a kernel's registers are divided for, the second
// number of its __launch_bounds__. Whether shared memory has room for as many is another question,
// which tests/kernels/nsa/branch/tile_sizes_test.cc answers for an A100 and for Hopper.
#pragma once

#include "common/nsa/attention_scratch.h"
#include "common/nsa/branch.h"
#include "common/nsa/visibility.h"

namespace nsa::cuda {

constexpr int kKeyTile = kScratchKeys;

// Columns of a tile of values or outputs: at most 128, as only keys are wider.
NSA_HOST_DEVICE constexpr int ValueColumns(int width) {
  return width > kMostValueWidth ? kMostValueWidth : width;
}
NSA_HOST_DEVICE constexpr int BothColumns(int width) { return width + ValueColumns(width); }

// ---- query-major: forward and dq

// Most rows of a tile. Wide heads leave room for one thread block per multiprocessor only, so it
// takes more rows. With keys of 192 a thread of dq has 160 accumulators, which leaves registers for
// two warp groups.
NSA_HOST_DEVICE constexpr int ForwardRows(int width) { return width > 64 ? 192 : 128; }
NSA_HOST_DEVICE constexpr int DqRows(int width) { return width > 128 ? 128 : ForwardRows(width); }

// Tokens of a tile of at most `rows` rows, with h heads in a group.
NSA_HOST_DEVICE constexpr int QueriesOf(Branch branch, int sel_blocks, int n_sel, int h, int rows) {
  // Where there are many more blocks than a token chooses, neighbouring tokens share few of them,
  // and a tile of fewer tokens has a smaller union. (With even more blocks: selected/by_key.cuh.)
  const bool thin = branch == kSel && sel_blocks >= 8 * n_sel;
  const int queries = (thin ? 64 : rows) / h;
  // The mask of takers has 32 bits, one per token.
  return branch == kSel && queries > 32 ? 32 : queries;
}
// The rows of that tile, padded to whole warp groups where heads are 64 wide or more, else to whole
// warps.
NSA_HOST_DEVICE constexpr int PaddedRows(int width, int rows) {
  const int step = width >= 64 ? 64 : 16;
  return (rows + step - 1) / step * step;
}

// Key tiles (and value tiles) that are in shared memory at a time.
NSA_HOST_DEVICE constexpr int StagesOf(bool large_tiles) { return large_tiles ? 3 : 2; }

constexpr int kStageBarrierBytes = 56;  // StageBarriers of attention_stages.cuh

// The union of the blocks that a tile's tokens chose: block ids and takers, then the bit set used
// to build it.
NSA_HOST_DEVICE constexpr int UnionCapacity(int sel_blocks, int n_sel, int queries) {
  return sel_blocks < n_sel * queries ? sel_blocks : n_sel * queries;
}
NSA_HOST_DEVICE constexpr int UnionBytes(int sel_blocks, int n_sel, int queries) {
  const int words = (sel_blocks + 31) / 32;
  return (8 * UnionCapacity(sel_blocks, n_sel, queries) + 8 * words + 15) / 16 * 16;
}

NSA_HOST_DEVICE constexpr int ForwardSharedBytes(int width, bool large_tiles, int rows_padded,
                                                 int union_bytes) {
  return 2 * rows_padded * width + 2 * StagesOf(large_tiles) * kKeyTile * BothColumns(width) +
         kStageBarrierBytes + union_bytes;
}
NSA_HOST_DEVICE constexpr int DqSharedBytes(int width, int stages, int rows_padded,
                                            int union_bytes) {
  return 2 * (rows_padded + stages * kKeyTile) * BothColumns(width) + kStageBarrierBytes +
         union_bytes;
}
NSA_HOST_DEVICE constexpr int QueryMajorBlocks(int width) { return width > 64 ? 1 : 2; }

// ---- key-major: dk and dv

// Warp groups of a thread block, of 64 keys each. With heads of 128 and wider two groups take as
// many registers as two thread blocks of one group, but each tile of rows is loaded once for 128
// keys. In the window branch that would not pay: 128 keys are seen by 64 tokens more than 64 keys
// are.
NSA_HOST_DEVICE constexpr int DkvGroups(Branch branch, int width, bool large_tiles) {
  return branch == kCmp && width > 64 && large_tiles ? 2 : 1;
}

// Rows of a tile. A thread has 192 accumulators with 64 rows and heads of 128, and as many with 32
// rows and keys of 192.
NSA_HOST_DEVICE constexpr int RowTile(int width, bool large_tiles) {
  return large_tiles && width <= 128 ? 64 : 32;
}
// Tiles of rows that are in shared memory at a time, with `groups` warp groups.
NSA_HOST_DEVICE constexpr int RowStages(int groups) { return groups > 1 ? 3 : 2; }

// Plans of rows that are kept: of the tile that is being multiplied, of up to two that are being
// copied, and of the next.
constexpr int kRowPlans = 4;
constexpr int kRowPlanBytes = 12;     // of a row: RowPlan of attention_rows.cuh
constexpr int kRowStatsBytes = 8;     // of a row: lse and delta
constexpr int kRowBarrierBytes = 16;  // BoxRowTiles::full

// Most tokens of a list that a thread block has in shared memory (SelectedScratch::segment).
constexpr int kLongestSegment = 2048;

// `list`: tokens of the longest segment of a list; 0 where tokens follow each other.
NSA_HOST_DEVICE constexpr int DkvSharedBytes(int width, bool large_tiles, int groups, int list) {
  const int rows = RowTile(width, large_tiles), loaded = RowStages(groups) * rows;
  return 2 * (groups * kKeyTile + loaded) * BothColumns(width) + loaded * kRowStatsBytes +
         kRowPlans * rows * kRowPlanBytes + kRowBarrierBytes + 4 * list;
}
NSA_HOST_DEVICE constexpr int DkvBlocks(int width, int groups) {
  return groups > 1 ? 1 : width > 64 ? 2 : 3;
}

// ---- by key block (selected/by_key.cuh, selected/one_pass.cuh)

constexpr int kByKeyRows = 64;  // of a tile

// Tiles of query rows at a time. With keys of 192 one, which leaves room for another thread block.
NSA_HOST_DEVICE constexpr int ByKeyStages(int width) { return width > 128 ? 1 : 2; }

// Whether backward goes in one pass. With keys of 192 a thread would have 352 accumulators.
NSA_HOST_DEVICE constexpr bool GoesInOnePass(int width, bool warp_groups) {
  return warp_groups && width >= 64 && width <= 128;
}

// `gradient`: of dq, else of forward.
NSA_HOST_DEVICE constexpr int ByKeySharedBytes(int width, bool gradient) {
  const int columns = width + (gradient ? ValueColumns(width) : 0);
  return 2 * kKeyTile * BothColumns(width) + 2 * ByKeyStages(width) * kByKeyRows * columns +
         kRowPlans * kByKeyRows * (kRowPlanBytes + 4) + 2 * kByKeyRows * kRowStatsBytes +
         8 * SelectedScratch::kItemTokens;
}
// Besides, the gradients of the logits.
NSA_HOST_DEVICE constexpr int OnePassSharedBytes(int width) {
  return ByKeySharedBytes(width, true) + 2 * kKeyTile * kByKeyRows;
}
// `warp_groups`: in sm_90a code. A thread block of one pass takes the registers of one of dk and
// dv: DkvBlocks(width, 1).
NSA_HOST_DEVICE constexpr int ByKeyBlocks(int width, bool gradient, bool warp_groups) {
  if (width > 128) return (warp_groups ? 3 : 2) - (gradient ? 1 : 0);
  if (width > 64) return warp_groups && !gradient ? 3 : 2;
  return gradient ? 3 : 4;
}

}  // namespace nsa::cuda
