// Scratch memory of the attention on a GPU: how sums over many rows are divided into segments, the
// layout of the selected branch's lists, and the resulting sizes in bytes. The kernels and the
// memory estimate both use these functions, so that they agree. They depend only on the shape. The
// CPU code does not use them.
#pragma once

#include <array>
#include <cstdint>

#include "common/nsa/branch.h"
#include "common/nsa/nsa_shape.h"

namespace nsa {

// Keys in a tile of the kernels; dk and dv are summed for one tile at a time, or for two in the
// compressed branch where heads are wider than 64.
inline constexpr int32_t kScratchKeys = 64;

// The kernels pad keys and values to the wider of the two, but values to 128 at most, since only
// keys may be wider.
inline constexpr int32_t kMostValueWidth = 128;

// The tokens that may see a key tile are divided into `count` segments of at most `tokens` tokens.
// Each segment has its own fp32 sums of dk and dv, which are added afterwards. With a single
// segment no such sums are stored.
struct TokenSegments {
  int32_t tokens = 0;
  int32_t count = 0;
};

// The segments of a branch in which every query sees one range of keys: cmp, win.
TokenSegments RangeSegments(const NsaShape& shape, Branch branch);

// Memory for the backward pass of such a branch. Offsets are in bytes.
struct BranchScratch {
  int64_t stats = 0;  // statistics of the rows, fp32 pairs [B, S, H]
  int64_t sums = 0;   // sums of the segments
  int64_t bytes = 0;  // total
};
BranchScratch RangeScratch(const NsaShape& shape, Branch branch);

// The selected branch, forward and backward (kernels/nsa/branch/selected/lists.cuh,
// selected/by_key.cuh).
struct SelectedScratch {
  // Tokens in a chunk of the inverse lists; largest number of tokens in an item of
  // selected/by_key.cuh.
  static constexpr int32_t kChunk = 32;
  static constexpr int32_t kItemTokens = 256;

  int32_t parts = 0;  // 64-key parts in a selection block

  // The inverse lists and the partial sums of dk and dv.
  int32_t chunks = 0;        // chunks in a sequence
  int32_t segment = 0;       // most entries of a list that are summed together
  int32_t max_segments = 0;  // most segments of a list
  int32_t partials = 0;      // most segments with partial sums in a (batch row, group)

  // True if forward and dq go over the key blocks, which is faster when each token selects few of
  // many blocks: S_sel ≥ 8 n, or 16 n with more than 8 heads per group, where a query tile has
  // fewer tokens; from S_sel ≥ 4 n on where the whole batch has 2,048 (group, block) pairs or more.
  // Partial results are stored for one range of tokens at a time: as many chunks as fit into
  // 256 MiB, or up to 1 GiB until a block has 64 entries of a range on average; at least one.
  bool by_key = false;
  int32_t range_chunks = 0;  // chunks in a range
  int32_t ranges = 0;        // ranges in a sequence
  int32_t items = 0;         // most items in a (range, batch row, group)
  int32_t splits = 0;        // most blocks with several items in a (range, batch row, group)
  int32_t slots = 0;         // most items of such blocks

  // Offsets in bytes: fp32 pairs [B, S, H]; the lists (SelectedLists); fp32 sums of dk and dv; the
  // arrays of ByKey. Backward either goes over the key blocks twice and uses `sums`, or once and
  // uses `key_sums` and `item_sums` in the same memory.
  int64_t stats = 0;
  int64_t counts = 0, sizes = 0, begins = 0, segments = 0, entries = 0;
  int64_t sums = 0;
  int64_t item_counts = 0, item_list = 0, split_list = 0, rows = 0, row_sums = 0;
  int64_t key_sums = 0, item_sums = 0;
  int64_t bytes = 0;  // total
};
SelectedScratch PlanSelectedScratch(const NsaShape& shape);

// Memory for the backward pass of φ = mlp on keys or values of `width`: the activation of the
// hidden units and, for each range of rows, sums over its rows. A row is a (batch row, block,
// group) triple; their ranges depend on the shape alone, and with them the order of sums.
struct PhiScratch {
  static constexpr int32_t kRangeRows = 256;  // at least, but in the only range
  static constexpr int32_t kMostRanges = 16;

  int32_t ranges = 0;
  int64_t act = 0;    // offset in bytes
  int64_t sums = 0;   // offset in bytes: fp32 [ranges, l + 1, width + 1, width]
  int64_t bytes = 0;  // total
};
PhiScratch PlanPhiScratch(const NsaShape& shape, int32_t width);

// Memory for the gate, forward and backward: one partial sum of the gradients of its parameters for
// each thread block. Their number is a constant, so that the order of sums over rows does not
// depend on the GPU: four for each of 128 multiprocessors.
struct GateScratch {
  static constexpr int32_t kBlocks = 512;

  int64_t bytes = 0;
};
GateScratch PlanGateScratch(const NsaShape& shape);

// Offsets in bytes, within a layer's scratch memory, of the parts for the backward pass of each
// branch, of φ and, with two branches or more, of the gate, and of the angles by which gradients
// are rotated back. The parts do not overlap, so the branches can run at the same time, and the
// gate can write the statistics of every branch's rows before the first branch begins.
struct LayerScratch {
  std::array<int64_t, kBranches> branch = {};
  std::array<int64_t, kBranches> stats = {};  // of the rows: within the branch's part
  int64_t phi = 0;
  int64_t gate = 0;
  int64_t angles = 0;  // fp32 pairs [S, dk/2]
  int64_t bytes = 0;   // total
};
LayerScratch PlanLayerScratch(const NsaShape& shape, const BranchSet& branches, bool phi_mlp);

}  // namespace nsa
