#include "worker/bench/budget.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/nsa/attention_scratch.h"
#include "common/nsa/visibility.h"

namespace nsa::bench {
namespace {

constexpr int kTileKeys = kScratchKeys;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Columns of a tile of queries and keys, and of values and outputs.
struct Widths {
  int q, o;
  explicit Widths(const NsaShape& s)
      : q(std::max(s.d_k, s.d_v)), o(std::min<int>(q, kMostValueWidth)) {}
};

// Products of `rows` rows and 64 keys, of so many columns in all, and their exponentials.
Executed Tiles(double tiles, int rows, int columns) {
  const double elements = tiles * rows * kTileKeys;
  return {.flops = 2 * elements * columns, .exponentials = elements};
}

KeyRange KeysOf(const NsaShape& s, Branch branch, int32_t t) {
  return branch == kCmp   ? BranchRule<kCmp>::Keys(s, t, 0)
         : branch == kWin ? BranchRule<kWin>::Keys(s, t, 0)
                          : BranchRule<kSel>::Keys(s, t, 0);
}

// Blocks that a token chooses.
double ChosenBlocks(const NsaShape& s, int32_t t) {
  const KeyRange blocks = CandidateBlocks(s, t, 0);
  return std::min<int32_t>(s.n_sel, blocks.end - blocks.begin);
}

// Expected blocks in the union of the choices of tokens t0 … t0 + queries − 1: the forced ones, and
// of the others those that at least one token chooses.
double UnionOf(const NsaShape& s, int32_t t0, int32_t queries) {
  const int32_t blocks = (t0 + queries - 1) / s.l_sel + 1;
  if (blocks <= s.n_sel) return blocks;
  const double others = blocks - 3, chosen = s.n_sel - 3;
  return 3 + others * (1 - std::pow(1 - chosen / others, queries));
}

// How a query-major kernel cuts the rows of a group (GridOf() of attention_launch.cuh).
struct QueryTiles {
  int32_t queries;
  int rows;  // padded to whole warp groups, or warps

  QueryTiles(const NsaShape& s, Branch branch) {
    const Widths width(s);
    const bool thin = branch == kSel && s.sel_blocks() >= 8 * s.n_sel;
    const int most = thin ? 64 : width.q > 64 ? 192 : 128;
    queries = most / s.heads_per_group();
    if (branch == kSel) queries = std::min(queries, 32);
    const int step = width.q >= 64 ? 64 : 16;
    rows = static_cast<int>(CeilDiv(int64_t{queries} * s.heads_per_group(), step)) * step;
  }
};

// A pass over the keys of all query tiles.
Executed QueryMajor(const NsaShape& s, Branch branch, int columns) {
  const QueryTiles cut(s, branch);
  double tiles = 0;
  for (int32_t t0 = 0; t0 < s.seq_len; t0 += cut.queries) {
    const int32_t queries = std::min(cut.queries, s.seq_len - t0);
    if (branch == kSel) {
      tiles += UnionOf(s, t0, queries) * static_cast<double>(CeilDiv(s.l_sel, kTileKeys));
    } else {
      const int32_t first = KeysOf(s, branch, t0).begin;
      const int32_t last = KeysOf(s, branch, t0 + queries - 1).end;
      tiles += static_cast<double>(CeilDiv(std::max(0, last - first), kTileKeys));
    }
  }
  return Tiles(tiles * s.batch * s.n_kv_groups, cut.rows, columns);
}

// Rows of a tile of the key-major kernels.
int RowTile(const NsaShape& s) { return Widths(s).q > 128 ? 32 : 64; }

// dk and dv of a branch whose tokens follow each other.
Executed KeyMajor(const NsaShape& s, Branch branch, int columns) {
  const int32_t keys = branch == kCmp ? s.cmp_blocks() : s.seq_len;
  const TokenSegments segments = RangeSegments(s, branch);
  const int rows = RowTile(s);
  double tiles = 0;
  for (int32_t begin = 0; begin < keys; begin += kTileKeys) {
    const int32_t end = std::min(begin + kTileKeys, keys);
    const TokenRange tokens = branch == kCmp ? BranchRule<kCmp>::Tokens(s, begin, end)
                                             : BranchRule<kWin>::Tokens(s, begin, end);
    for (int32_t at = tokens.begin; at < tokens.end; at += segments.tokens) {
      const int32_t count = std::min(segments.tokens, tokens.end - at);
      tiles += static_cast<double>(CeilDiv(count, rows / s.heads_per_group()));
    }
  }
  return Tiles(tiles * s.batch * s.n_kv_groups, rows, columns);
}

// The rows that chose a block, gathered for each block. A list's last tile is half full on average,
// and with ranges a list is cut at each.
Executed Gathered(const NsaShape& s, int columns) {
  const SelectedScratch plan = PlanSelectedScratch(s);
  const int rows = RowTile(s);
  double entries = 0;
  for (int32_t t = 0; t < s.seq_len; ++t) entries += ChosenBlocks(s, t);
  const double lists = static_cast<double>(s.sel_blocks()) * std::max(1, plan.ranges);
  const int tokens = rows / s.heads_per_group();  // of a tile
  const double tiles = entries / tokens + lists / 2;
  return Tiles(tiles * plan.parts * s.batch * s.n_kv_groups, rows, columns);
}

// Partial rows of `bytes` each.
double PartialBytes(const NsaShape& s, double bytes) {
  double rows = 0;
  for (int32_t t = 0; t < s.seq_len; ++t) rows += ChosenBlocks(s, t);
  return 2 * rows * PlanSelectedScratch(s).parts * s.batch * s.n_heads * bytes;
}

}  // namespace

Executed ExecutedForward(const NsaShape& s, Branch branch) {
  const Widths width(s);
  const int columns = width.q + width.o;
  if (branch != kSel || !PlanSelectedScratch(s).by_key) return QueryMajor(s, branch, columns);
  Executed executed = Gathered(s, columns);
  executed.partial_bytes = PartialBytes(s, 2.0 * width.o + 8);
  return executed;
}

// dq needs three products, dk and dv four; in one pass (selected/one_pass.cuh) all need five.
Executed ExecutedBackward(const NsaShape& s, Branch branch) {
  const Widths width(s);
  const int of_dq = 2 * width.q + width.o, of_keys = 2 * width.q + 2 * width.o;
  const bool by_key = branch == kSel && PlanSelectedScratch(s).by_key;
  if (by_key && width.q >= 64 && width.q <= 128) {
    Executed executed = Gathered(s, of_keys + width.q);
    executed.partial_bytes = PartialBytes(s, 2.0 * width.q);
    return executed;
  }
  Executed executed = by_key ? Gathered(s, of_dq) : QueryMajor(s, branch, of_dq);
  if (by_key) executed.partial_bytes = PartialBytes(s, 2.0 * width.q);
  executed += branch == kSel ? Gathered(s, of_keys) : KeyMajor(s, branch, of_keys);
  return executed;
}

}  // namespace nsa::bench
