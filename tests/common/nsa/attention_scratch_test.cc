#include "common/nsa/attention_scratch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace nsa {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// The shape of one layer of m7c.
NsaShape M7c(int32_t batch, int32_t seq_len) {
  return {batch, seq_len, 12, 2, 64, 64, 32, 16, 64, 16, 512};
}

NsaShape RandomShape(std::mt19937* random) {
  const auto one_of = [&](std::initializer_list<int32_t> values) {
    return values.begin()[(*random)() % values.size()];
  };
  NsaShape s;
  s.batch = one_of({1, 3, 8});
  s.seq_len = one_of({1, 31, 64, 1111, 4096, 40000, 1048576});
  s.n_kv_groups = one_of({1, 2, 8});
  s.n_heads = s.n_kv_groups * one_of({1, 6, 16});
  s.d_k = one_of({16, 64, 128, 192}), s.d_v = one_of({16, 64, 128});
  s.d = one_of({1, 8, 16}), s.l = s.d * one_of({1, 2, 4});
  s.l_sel = s.d * one_of({1, 4, 8});
  s.n_sel = one_of({3, 16, 64});
  s.window = one_of({1, 512, 2147483647});
  return s;
}

TEST(AttentionScratch, SegmentsCoverTheTokens) {
  std::mt19937 random(1);
  for (int round = 0; round < 1000; ++round) {
    const NsaShape s = RandomShape(&random);
    const TokenSegments window = RangeSegments(s, kWin), compressed = RangeSegments(s, kCmp);
    EXPECT_GE(int64_t{1} * window.tokens * window.count,
              std::min<int64_t>(s.seq_len, int64_t{s.window} + kScratchKeys - 1))
        << s.ToString();
    EXPECT_GE(int64_t{1} * compressed.tokens * compressed.count, s.seq_len) << s.ToString();
    const SelectedScratch selected = PlanSelectedScratch(s);
    EXPECT_GE(int64_t{1} * selected.segment * selected.max_segments, s.seq_len) << s.ToString();
    EXPECT_GE(selected.chunks * SelectedScratch::kChunk, s.seq_len) << s.ToString();
    if (!selected.by_key) continue;
    EXPECT_GE(int64_t{1} * selected.range_chunks * selected.ranges, selected.chunks)
        << s.ToString();
  }
}

// Each part has the size that the header states, does not overlap the part before it, and begins at
// a multiple of 256 bytes.
TEST(AttentionScratch, PartsDoNotOverlap) {
  std::mt19937 random(2);
  for (int round = 0; round < 1000; ++round) {
    const NsaShape s = RandomShape(&random);
    const SelectedScratch plan = PlanSelectedScratch(s);
    const int64_t pairs = int64_t{1} * s.batch * s.n_kv_groups, blocks = s.sel_blocks();
    const int64_t width = std::max(s.d_k, s.d_v), padded_values = std::min<int64_t>(width, 128),
                  sum = 4 * pairs * plan.parts * 64 * (width + padded_values);
    struct Part {
      int64_t begin, bytes;
    };
    std::vector<Part> parts = {{plan.stats, int64_t{8} * s.batch * s.seq_len * s.n_heads},
                               {plan.counts, 4 * pairs * plan.chunks * blocks},
                               {plan.sizes, 4 * pairs * blocks},
                               {plan.begins, 4 * pairs * blocks},
                               {plan.segments, 4 * pairs * blocks},
                               {plan.entries, 4 * pairs * s.seq_len * s.n_sel},
                               {plan.sums, plan.partials * sum}};
    if (plan.by_key) {
      const int64_t rows = int64_t{1} * s.batch * plan.range_chunks * SelectedScratch::kChunk *
                           s.n_heads * s.n_sel * plan.parts;
      // In the memory of `sums`.
      EXPECT_EQ(plan.key_sums, plan.sums);
      EXPECT_GE(plan.item_sums, plan.key_sums + (plan.ranges > 1 ? blocks * sum : 0));
      EXPECT_GE(plan.item_counts, plan.item_sums + plan.slots * sum);
      parts.insert(parts.end(), {{plan.item_counts, 8 * plan.ranges * pairs},
                                 {plan.item_list, 16 * plan.ranges * pairs * plan.items},
                                 {plan.split_list, 16 * plan.ranges * pairs * plan.splits},
                                 {plan.rows, 2 * rows * width},
                                 {plan.row_sums, 8 * rows}});
    }
    parts.push_back({plan.bytes, 0});
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      EXPECT_GE(parts[i + 1].begin, parts[i].begin + parts[i].bytes) << i << " " << s.ToString();
      EXPECT_EQ(parts[i].begin % 256, 0) << i << " " << s.ToString();
    }
  }
}

TEST(AttentionScratch, GoesByKeyBlockWhereATokenChoosesFewOfMany) {
  EXPECT_FALSE(PlanSelectedScratch(M7c(1, 4096)).by_key);
  EXPECT_FALSE(PlanSelectedScratch(M7c(1, 8128)).by_key);
  EXPECT_TRUE(PlanSelectedScratch(M7c(1, 8192)).by_key);
}

// With 16 heads per group a query tile has few tokens, so it is the faster way for longer.
TEST(AttentionScratch, GoesByKeyBlockLaterWithManyHeadsPerGroup) {
  NsaShape paper{1, 8192, 64, 4, 128, 128, 32, 16, 64, 16, 512};
  EXPECT_FALSE(PlanSelectedScratch(paper).by_key);
  paper.seq_len = 16384;
  EXPECT_TRUE(PlanSelectedScratch(paper).by_key);
}

TEST(AttentionScratch, GoesByKeyBlockSoonerWhereABatchHasManyBlocks) {
  EXPECT_FALSE(PlanSelectedScratch(M7c(32, 2048)).by_key);
  EXPECT_FALSE(PlanSelectedScratch(M7c(15, 4096)).by_key);
  EXPECT_FALSE(PlanSelectedScratch(M7c(17, 4032)).by_key);
  EXPECT_TRUE(PlanSelectedScratch(M7c(16, 4096)).by_key);
  EXPECT_TRUE(PlanSelectedScratch({8, 8192, 64, 4, 128, 128, 32, 16, 64, 16, 512}).by_key);
}

// A token has 12 heads · 16 selected blocks · (64 bf16 values and two sums) of partial rows, so
// 10,280 tokens fit into 256 MiB.
TEST(AttentionScratch, HoldsPartialRowsOfARangeOfTokens) {
  const SelectedScratch plan = PlanSelectedScratch(M7c(1, 65536));
  EXPECT_EQ(plan.range_chunks * SelectedScratch::kChunk, 10272);
  EXPECT_EQ(plan.ranges, 7);
  EXPECT_LE(plan.bytes - plan.rows, 256 * kMiB);
}

// 64 entries for each of 1,024 blocks are 4,096 tokens, which take 1.03 GiB: more than is allowed.
TEST(AttentionScratch, HoldsPartialRowsOfMoreTokensWhereTheyTakeMuchMemory) {
  const SelectedScratch plan =
      PlanSelectedScratch({1, 65536, 64, 4, 128, 128, 32, 16, 64, 16, 512});
  EXPECT_EQ(plan.range_chunks * SelectedScratch::kChunk, 3968);
  EXPECT_LE(plan.bytes - plan.rows, 1024 * kMiB);
}

// A regression test: the sums of dk and dv used to grow with S², to 34 GiB at a million tokens.
TEST(AttentionScratch, OfTheCompressedBranchStaysBoundedAtAMillionTokens) {
  EXPECT_EQ(RangeSegments(M7c(1, 65536), kCmp).tokens, 2048);
  EXPECT_LE(RangeScratch(M7c(1, 1048576), kCmp).bytes, 700 * kMiB);
}

TEST(AttentionScratch, OfALayerHasAPartForEachBranchThatIsThere) {
  const NsaShape s = M7c(2, 2048);
  const LayerScratch all = PlanLayerScratch(s, {true, true, true}, true);
  EXPECT_EQ(all.branch[kCmp], 0);
  EXPECT_GE(all.branch[kSel], RangeScratch(s, kCmp).bytes);
  EXPECT_GE(all.branch[kWin], all.branch[kSel] + PlanSelectedScratch(s).bytes);
  EXPECT_GE(all.phi, all.branch[kWin] + RangeScratch(s, kWin).bytes);
  EXPECT_GE(all.gate, all.phi + 2 * PlanPhiScratch(s, 64).bytes);
  EXPECT_GE(all.angles, all.gate + PlanGateScratch(s).bytes);
  const int64_t angles = 4 * 2048 * 64;
  EXPECT_GE(all.bytes, all.angles + angles);
  EXPECT_EQ(PlanLayerScratch(s, {false, false, true}, false).bytes,
            RangeScratch(s, kWin).bytes + angles);
  EXPECT_EQ(PlanLayerScratch(s, {false, false, false}, false).bytes, 0);
}

// The gate writes the statistics of the rows where the branches would, before they begin.
TEST(AttentionScratch, HasTheStatisticsOfABranchInThatBranchsPart) {
  const NsaShape s = M7c(2, 2048);
  const LayerScratch all = PlanLayerScratch(s, {true, true, true}, false);
  EXPECT_EQ(all.stats[kCmp], all.branch[kCmp] + RangeScratch(s, kCmp).stats);
  EXPECT_EQ(all.stats[kSel], all.branch[kSel] + PlanSelectedScratch(s).stats);
  EXPECT_EQ(all.stats[kWin], all.branch[kWin] + RangeScratch(s, kWin).stats);
  EXPECT_GE(RangeScratch(s, kCmp).sums, RangeScratch(s, kCmp).stats + 8 * 2 * 2048 * 12);
}

TEST(AttentionScratch, OfTheGateIsThereWithTwoBranchesOrMore) {
  const NsaShape s = M7c(2, 2048);
  // 512 partial sums of 32·64 + 32 + 3·32 + 3 fp32 gradients.
  EXPECT_EQ(PlanGateScratch(s).bytes, 4 * 512 * 2179);
  const LayerScratch two = PlanLayerScratch(s, {true, false, true}, false);
  EXPECT_GE(two.gate, two.branch[kWin] + RangeScratch(s, kWin).bytes);
  EXPECT_GE(two.bytes, two.gate + PlanGateScratch(s).bytes);
}

}  // namespace
}  // namespace nsa
