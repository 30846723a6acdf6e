// Scratch memory that attention takes on a GPU: how sums over many rows are cut into parts, how the
// selected branch's lists lie, and the bytes that come of it. In one place, since the kernels take
// what the memory estimate promises. Plain functions of the shape; on a CPU none of it is used.
#pragma once

#include <array>
#include <cstdint>

#include "common/base/branch.h"
#include "common/base/nsa_shape.h"

namespace nsa {

// Keys of a tile of the kernels; dk and dv are summed for that many at a time.
inline constexpr int32_t kScratchKeys = 64;

// The tokens that may see a key tile, in `count` segments of at most `tokens` whose fp32 sums of dk
// and dv are added afterwards; none are kept when there is one segment.
struct TokenSegments {
  int32_t tokens = 0;
  int32_t count = 0;
};

// Window: one segment, unless the tiles alone are too few to fill a GPU: then some five hundred
// blocks of threads in all, of 128 tokens or more.
TokenSegments WindowSegments(const NsaShape& shape);

// Compressed: there are few keys (S/d), each seen by every later token, so enough segments for some
// thousand blocks in all, of 64 tokens or more and of 2,048 or fewer, but of more where that would
// make over 16,384.
TokenSegments CompressedSegments(const NsaShape& shape);

// What a branch's backward takes: the rows' statistics, then the segments' sums, at `sums`.
struct BranchScratch {
  int64_t sums = 0;   // offset in bytes
  int64_t bytes = 0;  // in all
};
BranchScratch WindowScratch(const NsaShape& shape);
BranchScratch CompressedScratch(const NsaShape& shape);

// The selected branch, forward and backward (kernels/nsa/branch/selected_lists.cuh,
// selected_by_key.cuh).
struct SelectedScratch {
  // Tokens of a chunk of the inverse lists, and of an item of selected_by_key.cuh at most.
  static constexpr int32_t kChunk = 32;
  static constexpr int32_t kItemTokens = 256;

  int32_t parts = 0;  // 64-key parts of a selection block

  // The inverse lists and the partial sums of dk and dv.
  int32_t chunks = 0;        // of a sequence
  int32_t segment = 0;       // entries of a list that are summed at a time, at most
  int32_t max_segments = 0;  // of a list
  int32_t partials = 0;      // segments with partial sums of a (batch row, group), at most

  // Forward and dq by key block, where a token chooses few of many blocks: S_sel ≥ 16 n. Partial
  // results of rows are kept for a range of tokens at a time, 256 MiB or one chunk of them.
  bool by_key = false;
  int32_t range_chunks = 0;  // chunks of a range
  int32_t ranges = 0;        // of a sequence
  int32_t items = 0;         // of a (range, batch row, group), at most

  // Offsets in bytes: fp32 pairs [B, S, H]; the lists (SelectedLists); fp32 sums; by key (ByKey).
  int64_t stats = 0;
  int64_t counts = 0, sizes = 0, begins = 0, segments = 0, entries = 0;
  int64_t sums = 0;
  int64_t item_counts = 0, item_list = 0, rows = 0, row_sums = 0;
  int64_t bytes = 0;  // in all
};
SelectedScratch PlanSelectedScratch(const NsaShape& shape);

// φ mlp for keys or values of `width`: its input with positions (or its gradient), the activation
// (or its gradient), partial sums of the gradients of its biases. Offsets in bytes.
struct PhiScratch {
  static constexpr int32_t kSums = 256;  // partial sums of a bias

  int64_t act = 0, sums = 0;
  int64_t bytes = 0;  // in all
};
PhiScratch PlanPhiScratch(const NsaShape& shape, int32_t width);

// Where the part of each branch's backward, and of φ's, begins in a layer's scratch memory. Parts
// do not overlap, so that the branches may run side by side.
struct LayerScratch {
  std::array<int64_t, kBranches> branch = {};
  int64_t phi = 0;
  int64_t bytes = 0;  // in all
};
LayerScratch PlanLayerScratch(const NsaShape& shape, const BranchSet& branches, bool phi_mlp);

}  // namespace nsa
