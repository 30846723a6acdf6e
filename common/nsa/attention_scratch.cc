#include "common/nsa/attention_scratch.h"

#include <algorithm>

#include "common/base/arena_plan.h"

namespace nsa {
namespace {

constexpr int64_t kAlignment = 256;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t Pairs(const NsaShape& s) { return int64_t{1} * s.batch * s.n_kv_groups; }
int64_t WiderHead(const NsaShape& s) { return std::max(s.d_k, s.d_v); }
// Two fp32 values for each query row: log-sum-exp and delta.
int64_t StatsBytes(const NsaShape& s) { return int64_t{8} * s.batch * s.seq_len * s.n_heads; }
// dk and dv of a tile of keys, in fp32.
int64_t TileSumBytes(const NsaShape& s) {
  const int64_t values = std::min<int64_t>(WiderHead(s), kMostValueWidth);
  return int64_t{4} * kScratchKeys * (WiderHead(s) + values);
}

// Most keys whose dk and dv a thread block sums.
int64_t RangeKeys(const NsaShape& s, Branch branch) {
  return branch == kCmp && WiderHead(s) > 64 ? 2 * kScratchKeys : kScratchKeys;
}

// Entries of a list in one segment: the smallest power of two from 128 to 2,048 that gives at most
// about 512 segments in total. Short segments let a small batch fill the GPU too.
int32_t ListSegment(const NsaShape& s) {
  const int64_t entries = Pairs(s) * s.seq_len * s.n_sel;
  int32_t segment = 128;
  while (segment < 2048 && entries / segment > 512) segment *= 2;
  return segment;
}

// One segment, unless there are too few tiles to fill a GPU. Then there are enough segments for
// about 768 thread blocks in total, each segment having at least 128 tokens.
TokenSegments WindowSegments(const NsaShape& s) {
  const int64_t tiles = CeilDiv(s.seq_len, kScratchKeys) * Pairs(s);
  const int64_t tokens = std::min<int64_t>(s.seq_len, int64_t{s.window} + kScratchKeys - 1);
  const int64_t count = std::clamp<int64_t>(768 / tiles, 1, CeilDiv(tokens, 128));
  return {static_cast<int32_t>(CeilDiv(tokens, count)), static_cast<int32_t>(count)};
}

// There are few keys (S/d), and every later token sees each of them. There are enough segments for
// about 768 thread blocks in total, but at most 24 of at least 64 tokens each. If a segment then
// has more than 2,048 tokens there are more segments, as long as that does not take more than
// 16,384 thread blocks in total.
TokenSegments CompressedSegments(const NsaShape& s) {
  const int64_t tiles = CeilDiv(std::max(1, s.cmp_blocks()), kScratchKeys) * Pairs(s);
  const int64_t fewest = std::min(CeilDiv(s.seq_len, 2048), std::max<int64_t>(1, 16384 / tiles));
  const int64_t most = std::max(fewest, std::min<int64_t>(24, CeilDiv(s.seq_len, 64)));
  const int64_t count = std::clamp<int64_t>(768 / tiles, fewest, most);
  return {static_cast<int32_t>(CeilDiv(s.seq_len, count)), static_cast<int32_t>(count)};
}

// Measured (kernels/history.md). Few items leave multiprocessors idle.
bool GoesByKey(const NsaShape& s) {
  constexpr int64_t kManyItems = 2048;
  const int64_t few_of_many = s.heads_per_group() > 8 ? 16 : 8;
  return s.sel_blocks() >= few_of_many * s.n_sel ||
         (s.sel_blocks() >= 4 * s.n_sel && Pairs(s) * s.sel_blocks() >= kManyItems);
}

// Partial rows of a chunk of tokens.
int64_t ChunkRows(const NsaShape& s) {
  return int64_t{SelectedScratch::kChunk} * s.batch * s.n_heads * s.n_sel *
         CeilDiv(s.l_sel, kScratchKeys);
}

// The ranges of tokens whose partial results are kept at a time, and the items in them.
void DivideIntoRanges(const NsaShape& s, SelectedScratch* plan) {
  constexpr int64_t kPartialRowsBytes = int64_t{256} << 20,
                    kMostPartialRowsBytes = int64_t{1} << 30;
  constexpr int64_t kEntriesOfBlock = 64, kItemTokens = SelectedScratch::kItemTokens;
  // A partial result is a row of bf16 values with its maximum and its sum in fp32.
  const int64_t chunk_bytes = ChunkRows(s) * (2 * WiderHead(s) + 8);
  const int64_t wanted =
      CeilDiv(kEntriesOfBlock * s.sel_blocks(), int64_t{SelectedScratch::kChunk} * s.n_sel);
  const int64_t chunks = std::max(kPartialRowsBytes / chunk_bytes,
                                  std::min(kMostPartialRowsBytes / chunk_bytes, wanted));
  plan->range_chunks = static_cast<int32_t>(std::clamp<int64_t>(chunks, 1, plan->chunks));
  plan->ranges = static_cast<int32_t>(CeilDiv(plan->chunks, plan->range_chunks));
  const int64_t entries = int64_t{1} * plan->range_chunks * SelectedScratch::kChunk * s.n_sel;
  plan->items = static_cast<int32_t>(s.sel_blocks() + CeilDiv(entries, kItemTokens));
  // A block has several items if it has more than kItemTokens entries. Over these blocks,
  // Σ ⌈entries / kItemTokens⌉ is at most 2 Σ entries / kItemTokens.
  plan->splits = static_cast<int32_t>(CeilDiv(entries, kItemTokens));
  plan->slots = 2 * plan->splits;
}

}  // namespace

TokenSegments RangeSegments(const NsaShape& s, Branch branch) {
  return branch == kCmp ? CompressedSegments(s) : WindowSegments(s);
}

BranchScratch RangeScratch(const NsaShape& s, Branch branch) {
  const int64_t keys = branch == kCmp ? s.cmp_blocks() : s.seq_len;
  const int64_t segments = RangeSegments(s, branch).count, tile_keys = RangeKeys(s, branch);
  const int64_t tiles = CeilDiv(keys, tile_keys) * Pairs(s);
  ArenaPlan parts(kAlignment);
  BranchScratch scratch;
  scratch.stats = parts.Take(StatsBytes(s));
  scratch.sums =
      parts.Take(segments == 1 ? 0 : tiles * segments * tile_keys / kScratchKeys * TileSumBytes(s));
  scratch.bytes = parts.used();
  return scratch;
}

SelectedScratch PlanSelectedScratch(const NsaShape& s) {
  SelectedScratch plan;
  plan.parts = static_cast<int32_t>(CeilDiv(s.l_sel, kScratchKeys));
  plan.chunks = static_cast<int32_t>(CeilDiv(s.seq_len, SelectedScratch::kChunk));
  plan.segment = ListSegment(s);
  plan.max_segments = static_cast<int32_t>(CeilDiv(s.seq_len, plan.segment));
  // Over the lists with size > segment, Σ ⌈size / segment⌉ is at most 2 Σ size / segment.
  const int64_t entries = int64_t{1} * s.seq_len * s.n_sel;
  plan.partials =
      s.seq_len <= plan.segment ? 0 : static_cast<int32_t>(2 * CeilDiv(entries, plan.segment));
  plan.by_key = GoesByKey(s);
  if (plan.by_key) DivideIntoRanges(s, &plan);
  ArenaPlan parts(kAlignment);
  plan.stats = parts.Take(StatsBytes(s));
  plan.counts = parts.Take(4 * Pairs(s) * plan.chunks * s.sel_blocks());
  plan.sizes = parts.Take(4 * Pairs(s) * s.sel_blocks());
  plan.begins = parts.Take(4 * Pairs(s) * s.sel_blocks());
  plan.segments = parts.Take(4 * Pairs(s) * s.sel_blocks());
  plan.entries = parts.Take(4 * Pairs(s) * entries);
  // With a single range no sums continue in another.
  const int64_t sum_bytes = Pairs(s) * plan.parts * TileSumBytes(s);
  const int64_t key_sum_bytes = plan.ranges > 1 ? sum_bytes * s.sel_blocks() : 0;
  plan.sums =
      parts.Take(std::max(sum_bytes * plan.partials, key_sum_bytes + sum_bytes * plan.slots));
  plan.key_sums = plan.sums;
  plan.item_sums = plan.sums + key_sum_bytes;
  if (plan.by_key) {
    plan.item_counts = parts.Take(8 * plan.ranges * Pairs(s));
    plan.item_list = parts.Take(16 * plan.ranges * Pairs(s) * plan.items);
    plan.split_list = parts.Take(16 * plan.ranges * Pairs(s) * plan.splits);
    const int64_t rows = plan.range_chunks * ChunkRows(s);
    plan.rows = parts.Take(rows * 2 * WiderHead(s));
    plan.row_sums = parts.Take(rows * 8);
  }
  plan.bytes = parts.used();
  return plan;
}

PhiScratch PlanPhiScratch(const NsaShape& s, int32_t width) {
  const int64_t rows = Pairs(s) * s.cmp_blocks();
  ArenaPlan parts(kAlignment);
  PhiScratch scratch;
  scratch.ranges = static_cast<int32_t>(
      std::clamp<int64_t>(rows / PhiScratch::kRangeRows, 1, PhiScratch::kMostRanges));
  scratch.act = parts.Take(2 * rows * width);
  scratch.sums = parts.Take(int64_t{4} * scratch.ranges * (s.l + 1) * (width + 1) * width);
  scratch.bytes = parts.used();
  return scratch;
}

GateScratch PlanGateScratch(const NsaShape& s) {
  // The gradients of fc1_w, fc1_b, fc2_w and fc2_b with three branches (kernels/nsa/gate/gate.h).
  const int64_t hidden = s.d_k / 2;
  return {4 * GateScratch::kBlocks * (hidden * (s.d_k + 1) + kBranches * (hidden + 1))};
}

LayerScratch PlanLayerScratch(const NsaShape& s, const BranchSet& branches, bool phi_mlp) {
  ArenaPlan parts(kAlignment);
  LayerScratch scratch;
  const auto take = [&](int branch, const auto& plan) {
    scratch.branch[branch] = parts.Take(plan.bytes);
    scratch.stats[branch] = scratch.branch[branch] + plan.stats;
  };
  for (int c = 0; c < kBranches; ++c) {
    if (!branches[c]) continue;
    if (c == kSel) {
      take(c, PlanSelectedScratch(s));
    } else {
      take(c, RangeScratch(s, static_cast<Branch>(c)));
    }
  }
  if (branches[kCmp] && phi_mlp) {
    scratch.phi = parts.Take(PlanPhiScratch(s, s.d_k).bytes + PlanPhiScratch(s, s.d_v).bytes);
  }
  if (CountOf(branches) > 1) scratch.gate = parts.Take(PlanGateScratch(s).bytes);
  if (CountOf(branches) > 0) scratch.angles = parts.Take(int64_t{4} * s.seq_len * s.d_k);
  scratch.bytes = parts.used();
  return scratch;
}

}  // namespace nsa
