#include "worker/bench/budget.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/nsa/attention_scratch.h"
#include "common/nsa/visibility.h"
#include "kernels/nsa/branch/tile_sizes.h"

namespace nsa::bench {
namespace {

using cuda::kKeyTile;

constexpr int kLanes = 32;
constexpr int kElement = 2;     // bytes of a bf16
constexpr int kWarpRows = 16;   // of a result that a warp multiplies
constexpr int kGroupRows = 64;  // of a result that a warp group multiplies
constexpr int kGroupWarps = 4;  // which issue each of its instructions
constexpr int kLaneBytes = 16;  // that an instruction copies at most for each lane
constexpr int kCopied = kLanes * kLaneBytes;
constexpr int kWarpFlops = 2 * 16 * 8 * 16;  // of an mma.sync: 16 x 8 results, 16 columns

// Instructions that each logit takes of a lane. All have a multiplication by the scale with an
// addition, and an exponential.
constexpr double kForwardOps = 2 + 1 + 1 + 0.5;  // the maximum, the sum, half of a conversion
constexpr double kDqOps = 2 + 2 + 0.5;           // P (dP - delta), half of a conversion
constexpr double kKeysOps = 2 + 2 + 2 * 0.5;     // the same, and P is converted too
constexpr double kOnePassOps = kKeysOps + 0.5;   // half of a store of dS to shared memory
constexpr double kSelectionOps = 2 + 1;          // the sum over the heads

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Columns of a tile of queries and keys, and of values and outputs.
struct Widths {
  int q, o;
  explicit Widths(const NsaShape& s) : q(std::max(s.d_k, s.d_v)), o(cuda::ValueColumns(q)) {}
  int both() const { return q + o; }
};

bool LargeTiles(const Widths& width, KernelCode code) {
  return width.q <= 64 || code == KernelCode::kSm90a;
}
bool ByWarpGroups(const Widths& width, KernelCode code) {
  return width.q >= 64 && code == KernelCode::kSm90a;
}
// Whether Hopper's copy engine brings the tiles of rows or keys that follow each other, by a single
// instruction.
bool ByBoxes(const Widths& width, KernelCode code) {
  return width.q == 64 && code == KernelCode::kSm90a;
}

// What is done with a tile of logits, `rows` rows of the products' results by `columns` columns.
struct Tile {
  int rows = 0, columns = 0;
  int by_row = 0;      // columns of the products of two tiles in shared memory
  int accumulate = 0;  // columns of the products of logits, in registers, and a tile
  int by_column = 0;   // columns of the product of 64 x 64 logits in shared memory and a tile
  double ops = 0;      // instructions of a lane for each logit
  double copied = 0;   // bytes brought to shared memory by threads
  double by_box = 0;   // bytes brought to shared memory by Hopper's copy engine
  bool warp_groups = false;

  double logits() const { return double{1} * rows * columns; }
  Executed One() const;
};

Executed Tile::One() const {
  // Products of a warp or warp group, and what it reads for them.
  const int unit = warp_groups ? kGroupRows : kWarpRows;
  const double groups = double{1} * rows / unit;
  double elements = double{1} * (unit + columns) * by_row + double{1} * columns * accumulate;
  if (by_column > 0) elements += double{1} * columns * (unit + by_column);
  const double operands = groups * kElement * elements;
  const double flops = 2 * logits() * (by_row + accumulate + by_column);
  // An instruction of a warp group has 16 columns of the sum and 64 of the result.
  const double products = warp_groups ? groups * kGroupWarps *
                                            (by_row / 16.0 * std::max(1, columns / 64) +
                                             columns / 16.0 * (accumulate + by_column) / 64)
                                      : flops / kWarpFlops + operands / kCopied;
  // The logits of a product by columns pass through shared memory.
  const double stored = by_column > 0 ? kElement * logits() : 0;
  return {.flops = flops,
          .exponentials = logits(),
          .instructions = logits() * ops / kLanes + products + copied / kCopied,
          .shared_bytes = operands + copied + by_box + stored};
}

Executed Times(double count, const Executed& one) {
  return {.flops = count * one.flops,
          .exponentials = count * one.exponentials,
          .instructions = count * one.instructions,
          .shared_bytes = count * one.shared_bytes};
}

// `bytes` that are brought to shared memory before the first tile.
Executed Brought(double bytes, bool by_boxes) {
  return {.instructions = by_boxes ? 0 : bytes / kCopied, .shared_bytes = bytes};
}

// Sets the bytes that are brought for each tile.
void Bring(double bytes, bool by_boxes, Tile* tile) {
  (by_boxes ? tile->by_box : tile->copied) = bytes;
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
double ChosenBlocks(const NsaShape& s) {
  double blocks = 0;
  for (int32_t t = 0; t < s.seq_len; ++t) blocks += ChosenBlocks(s, t);
  return blocks;
}

// Expected blocks in the union of the choices of tokens t0 … t0 + queries − 1: the forced ones, and
// of the others those that at least one token chooses.
double UnionOf(const NsaShape& s, int32_t t0, int32_t queries) {
  const int32_t blocks = (t0 + queries - 1) / s.l_sel + 1;
  if (blocks <= s.n_sel) return blocks;
  const double others = blocks - 3, chosen = s.n_sel - 3;
  return 3 + others * (1 - std::pow(1 - chosen / others, queries));
}

// Rows of a tile that can have a token.
int UsedRows(const NsaShape& s, int rows) {
  return rows / s.heads_per_group() * s.heads_per_group();
}

// A pass over the keys of all query tiles, of at most `most_rows` rows. `tile` has its products,
// `columns` those of the tensors of which a query tile is loaded.
Executed QueryMajor(const NsaShape& s, Branch branch, KernelCode code, int most_rows, int columns,
                    Tile tile) {
  const Widths width(s);
  const int h = s.heads_per_group();
  const int32_t most = cuda::QueriesOf(branch, s.sel_blocks(), s.n_sel, h, most_rows);
  double tiles = 0;
  for (int32_t t0 = 0; t0 < s.seq_len; t0 += most) {
    const int32_t queries = std::min(most, s.seq_len - t0);
    if (branch == kSel) {
      tiles += UnionOf(s, t0, queries) * static_cast<double>(CeilDiv(s.l_sel, kKeyTile));
    } else {
      const int32_t first = KeysOf(s, branch, t0).begin;
      const int32_t last = KeysOf(s, branch, t0 + queries - 1).end;
      tiles += static_cast<double>(CeilDiv(std::max(0, last - first), kKeyTile));
    }
  }
  tile.rows = cuda::PaddedRows(width.q, most * h), tile.columns = kKeyTile;
  tile.warp_groups = ByWarpGroups(width, code);
  Bring(kElement * kKeyTile * width.both(), ByBoxes(width, code), &tile);
  Executed executed = Times(tiles * s.batch * s.n_kv_groups, tile.One());
  const double rows = double{1} * s.batch * s.seq_len * s.n_heads;
  executed += Brought(kElement * rows * columns, ByBoxes(width, code));
  return executed;
}

Executed Forward(const NsaShape& s, Branch branch, KernelCode code) {
  const Widths width(s);
  return QueryMajor(s, branch, code, cuda::ForwardRows(width.q), width.q,
                    {.by_row = width.q, .accumulate = width.o, .ops = kForwardOps});
}
Executed Dq(const NsaShape& s, Branch branch, KernelCode code) {
  const Widths width(s);
  return QueryMajor(s, branch, code, cuda::DqRows(width.q), width.both(),
                    {.by_row = width.both(), .accumulate = width.q, .ops = kDqOps});
}

// The products of dk and dv of 64 keys and a tile of `rows` query rows, of which `used` are rows.
Tile KeyTileOf(const NsaShape& s, KernelCode code, int keys, int rows, int used, bool by_boxes) {
  const Widths width(s);
  Tile tile{.rows = keys,
            .columns = rows,
            .by_row = width.both(),
            .accumulate = width.both(),
            .ops = kKeysOps,
            .warp_groups = ByWarpGroups(width, code)};
  Bring(double{kElement} * used * width.both(), by_boxes, &tile);
  return tile;
}

// dk and dv of a branch whose tokens follow each other.
Executed KeyMajor(const NsaShape& s, Branch branch, KernelCode code) {
  const Widths width(s);
  const bool large = LargeTiles(width, code);
  const int32_t all = branch == kCmp ? s.cmp_blocks() : s.seq_len;
  const int32_t keys = cuda::DkvGroups(branch, width.q, large) * kKeyTile;
  const TokenSegments segments = RangeSegments(s, branch);
  const int rows = cuda::RowTile(width.q, large), tokens_of_tile = rows / s.heads_per_group();
  double tiles = 0, blocks = 0;
  for (int32_t begin = 0; begin < all; begin += keys) {
    const int32_t end = std::min(begin + keys, all);
    const TokenRange tokens = branch == kCmp ? BranchRule<kCmp>::Tokens(s, begin, end)
                                             : BranchRule<kWin>::Tokens(s, begin, end);
    for (int32_t at = tokens.begin; at < tokens.end; at += segments.tokens) {
      const int32_t count = std::min(segments.tokens, tokens.end - at);
      tiles += static_cast<double>(CeilDiv(count, tokens_of_tile));
      ++blocks;
    }
  }
  const double pairs = double{1} * s.batch * s.n_kv_groups;
  Executed executed = Times(
      tiles * pairs, KeyTileOf(s, code, keys, rows, UsedRows(s, rows), ByBoxes(width, code)).One());
  executed += Brought(blocks * pairs * kElement * keys * width.both(), false);
  return executed;
}

// The lists of tokens that chose a block, where those of each `range` tokens have lists of their
// own: a token chooses blocks before it.
double ListsOf(const NsaShape& s, int64_t range) {
  double lists = 0;
  for (int64_t begin = 0; begin < s.seq_len; begin += range) {
    lists += static_cast<double>(CeilDiv(std::min<int64_t>(begin + range, s.seq_len), s.l_sel));
  }
  return lists;
}

// A pass over the rows that chose a block, gathered for each block in tiles of `rows` rows. A
// list's last tile is half full on average. Keys and values are loaded for each list.
Executed Gathered(const NsaShape& s, int rows, int64_t range, const Tile& tile) {
  const double lists = ListsOf(s, range);
  const int tokens = rows / s.heads_per_group();  // of a tile
  const double tiles = ChosenBlocks(s) / tokens + lists / 2;
  const double parts = double{1} * PlanSelectedScratch(s).parts * s.batch * s.n_kv_groups;
  Executed executed = Times(tiles * parts, tile.One());
  executed += Brought(lists * parts * kElement * kKeyTile * Widths(s).both(), false);
  return executed;
}

// dk and dv of the selected branch.
Executed SelectedKeys(const NsaShape& s, KernelCode code) {
  const Widths width(s);
  const int rows = cuda::RowTile(width.q, LargeTiles(width, code));
  return Gathered(s, rows, s.seq_len,
                  KeyTileOf(s, code, kKeyTile, rows, UsedRows(s, rows), ByBoxes(width, code)));
}

// Forward or dq by key block: `tile` has the products, and `columns` those of the tensors whose
// rows are gathered.
Tile RowTileOf(const NsaShape& s, KernelCode code, int columns, Tile tile) {
  tile.rows = cuda::kByKeyRows, tile.columns = kKeyTile;
  tile.warp_groups = ByWarpGroups(Widths(s), code);
  tile.copied = double{kElement} * UsedRows(s, tile.rows) * columns;
  return tile;
}

// A pass by key block with partial rows of `bytes` each.
Executed ByKey(const NsaShape& s, const Tile& tile, double bytes) {
  const SelectedScratch plan = PlanSelectedScratch(s);
  const int64_t range = int64_t{plan.range_chunks} * SelectedScratch::kChunk;
  Executed executed = Gathered(s, cuda::kByKeyRows, range, tile);
  executed.partial_bytes = 2 * ChosenBlocks(s) * plan.parts * s.batch * s.n_heads * bytes;
  executed.instructions += executed.partial_bytes / kCopied;
  return executed;
}

}  // namespace

Executed ExecutedForward(const NsaShape& s, Branch branch, KernelCode code) {
  const Widths width(s);
  if (branch != kSel || !PlanSelectedScratch(s).by_key) return Forward(s, branch, code);
  const Tile products{.by_row = width.q, .accumulate = width.o, .ops = kForwardOps};
  return ByKey(s, RowTileOf(s, code, width.q, products), double{kElement} * width.o + 8);
}

// dq needs three products, dk and dv four; in one pass (selected/one_pass.cuh) all need five.
Executed ExecutedBackward(const NsaShape& s, Branch branch, KernelCode code) {
  const Widths width(s);
  const double row = double{kElement} * width.q;
  if (branch != kSel) {
    Executed executed = Dq(s, branch, code);
    executed += KeyMajor(s, branch, code);
    return executed;
  }
  const bool by_key = PlanSelectedScratch(s).by_key;
  if (by_key && cuda::GoesInOnePass(width.q, code == KernelCode::kSm90a)) {
    const int rows = cuda::kByKeyRows;
    Tile tile = KeyTileOf(s, code, kKeyTile, rows, UsedRows(s, rows), false);
    tile.by_column = width.q, tile.ops = kOnePassOps;
    return ByKey(s, tile, row);
  }
  const Tile products{.by_row = width.both(), .accumulate = width.q, .ops = kDqOps};
  Executed executed =
      by_key ? ByKey(s, RowTileOf(s, code, width.both(), products), row) : Dq(s, branch, code);
  executed += SelectedKeys(s, code);
  return executed;
}

// Thread blocks of 16 tokens and four warps, each with 32 keys of a round (select_tile.cuh). The
// keys of a warp stay in registers for all heads.
Executed ExecutedSelection(const NsaShape& s) {
  constexpr int kTokens = 16, kRoundKeys = 128, kRoundWarps = 4, kWarpKeys = 32;
  const int h = s.heads_per_group(), keys_of_block = s.l_sel / s.d;
  double rounds = 0, blocks = 0;
  for (int32_t t0 = 0; t0 < s.seq_len; t0 += kTokens) {
    const int32_t last = std::min(t0 + kTokens, s.seq_len) - 1;
    if (last / s.l_sel < s.n_sel) continue;  // every token chooses all that it sees
    const int32_t keys = std::min(KeysOf(s, kCmp, last).end, (last / s.l_sel - 1) * keys_of_block);
    rounds += static_cast<double>(CeilDiv(std::max(0, keys), kRoundKeys));
    ++blocks;
  }
  const double pairs = double{1} * s.batch * s.n_kv_groups;
  const double logits = double{1} * kTokens * kRoundKeys * h, flops = 2 * logits * s.d_k;
  const double copied = double{kElement} * kRoundKeys * s.d_k;
  const double operands =
      kElement * double{1} * kRoundWarps * (double{1} * h * kTokens + kWarpKeys) * s.d_k;
  const double sums = 4.0 * kTokens * kRoundKeys;  // of fp32, written and read
  Executed executed =
      Times(rounds * pairs, {.flops = flops,
                             .exponentials = logits,
                             .instructions = logits * kSelectionOps / kLanes + flops / kWarpFlops +
                                             (operands + copied + 2 * sums) / kCopied,
                             .shared_bytes = operands + copied + 2 * sums});
  executed += Brought(blocks * pairs * kElement * h * kTokens * s.d_k, false);
  return executed;
}

}  // namespace nsa::bench
