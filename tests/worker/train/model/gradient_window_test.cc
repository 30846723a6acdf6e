#include "worker/train/model/gradient_window.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/testing/status_matchers.h"
#include "tests/worker/train/tiny_job.h"
#include "worker/train/model/model.h"
#include "worker/train/model/shares.h"

namespace nsa::train {
namespace {

using ::testing::ElementsAre;

TEST(WindowPlan, HasRoomForTwoPartsThatFollowEachOther) {
  const std::vector<Slice> parts = {{160, 208}, {96, 160}, {64, 96}, {0, 64}};
  const WindowPlan plan = WindowPlan::Of(parts, /*tail=*/8, /*two=*/true);
  // 48 + 8 floats, rounded to 64, beside 64; 64 beside 32; 32 beside 64.
  EXPECT_EQ(plan.room, 128);
  EXPECT_THAT(plan.at, ElementsAre(0, 64, 0, 64));
  const WindowPlan one = WindowPlan::Of(parts, 0, /*two=*/false);
  EXPECT_EQ(one.room, 64);
  EXPECT_THAT(one.at, ElementsAre(0, 0, 0, 0));
}

TEST(WindowPlan, LetsNoTwoNeighboursOverlapWhateverTheirSizes) {
  uint32_t state = 1;
  for (int round = 0; round < 200; ++round) {
    std::vector<Slice> parts;
    int64_t end = 1 << 20;
    for (int i = 0; i < 2 + round % 7; ++i) {
      state = state * 1664525u + 1013904223u;
      parts.push_back({end - 16 * (1 + state % 500), end});
      end = parts.back().begin;
    }
    const WindowPlan plan = WindowPlan::Of(parts, 40, true);
    for (size_t i = 0; i < parts.size(); ++i) {
      const int64_t size = parts[i].size() + (i == 0 ? 40 : 0);
      EXPECT_GE(plan.at[i], 0);
      EXPECT_EQ(plan.at[i] % 16, 0);
      EXPECT_LE(plan.at[i] + size, plan.room);
      if (i == 0) continue;
      const Slice mine = {plan.at[i], plan.at[i] + size};
      const int64_t before = parts[i - 1].size() + (i == 1 ? 40 : 0);
      EXPECT_TRUE(mine.Common({plan.at[i - 1], plan.at[i - 1] + before}).empty()) << round;
    }
  }
}

TEST(PartsOf, AreAllElementsFromTheEnd) {
  const v1::JobSpec spec = TinyJob();
  const ParameterLayout layout(spec);
  Arena parameters(&layout);
  const auto model = Model::Create(
      spec, {.batch = 1, .seq_len = spec.train().seq_len(), .training = true}, &parameters);
  ASSERT_OK(model);
  const std::vector<Slice> parts = PartsOf(**model, layout);
  ASSERT_EQ(parts.size(), 6u) << "head, of two blocks the MLP and the rest, embedding";
  EXPECT_EQ(parts.front().end, layout.size());
  EXPECT_EQ(parts.back().begin, 0);
  for (size_t i = 1; i < parts.size(); ++i) EXPECT_EQ(parts[i].end, parts[i - 1].begin);
}

// Backward that only sees one part at a time gives the gradients of backward that sees all, whether
// it overwrites or adds.
void ExpectTheGradientsOfAnArenaOfAll(const v1::JobSpec& spec) {
  const ParameterLayout layout(spec);
  Arena parameters(&layout), all(&layout);
  Initialize(7, &parameters);
  const auto model = Model::Create(
      spec, {.batch = 2, .seq_len = spec.train().seq_len(), .training = true}, &parameters);
  ASSERT_OK(model);
  const int64_t rows = int64_t{2} * spec.train().seq_len();
  const auto tokens = TinyTokens(rows, spec.model().vocab(), 1);
  const auto targets = TinyTokens(rows, spec.model().vocab(), 2);
  for (const bool overwrite : {false, true}) {
    ASSERT_OK((*model)->Forward({}, {tokens, targets}));
    if (!overwrite) std::ranges::fill(all.flat(), 0.0f);
    ASSERT_OK((*model)->Backward({}, 0.01f, &all, {}, overwrite));

    auto window = GradientWindow::Create(&layout, PartsOf(**model, layout), Backend::kCpu);
    ASSERT_OK(window);
    size_t part = 0;
    const auto open = [&] {
      window->MoveTo(part);
      std::ranges::fill(window->arena()->flat(), overwrite ? NAN : 0.0f);
    };
    open();
    ASSERT_OK((*model)->Forward({}, {tokens, targets}));
    const auto after_part = [&](int64_t) {
      const Arena& arena = *window->arena();
      const auto want = all.of(arena.slice());
      EXPECT_TRUE(std::ranges::equal(arena.flat(), want)) << "part " << part << ' ' << overwrite;
      if (++part < window->parts().size()) open();
      return absl::OkStatus();
    };
    ASSERT_OK((*model)->Backward({}, 0.01f, window->arena(), after_part, overwrite));
    EXPECT_EQ(part, window->parts().size());
  }
}

TEST(GradientWindow, GivesTheGradientsOfAnArenaOfAll) {
  ExpectTheGradientsOfAnArenaOfAll(TinyJob());
}

TEST(GradientWindow, HasWhatEachKeyOfTheModelAddsToAPart) {
  v1::JobSpec spec = TinyJob();
  spec.mutable_model()->set_mlp_dim(80);
  spec.mutable_model()->set_mlp(v1::MLP_SWIGLU);
  spec.mutable_model()->set_qkv_bias(true);
  spec.mutable_model()->set_qk_norm(true);
  spec.mutable_model()->set_qk_norm_weights(true);
  ExpectTheGradientsOfAnArenaOfAll(spec);
}

TEST(GradientWindow, IsNotForAModelWhoseHeadIsItsEmbedding) {
  v1::JobSpec spec = TinyJob();
  spec.mutable_model()->set_tie_embeddings(true);
  const ParameterLayout layout(spec);
  Arena parameters(&layout);
  const auto model = Model::Create(
      spec, {.batch = 1, .seq_len = spec.train().seq_len(), .training = true}, &parameters);
  ASSERT_OK(model);
  const auto window = GradientWindow::Create(&layout, PartsOf(**model, layout), Backend::kCpu);
  EXPECT_EQ(window.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(window.status().message(), ::testing::HasSubstr("runtime.shard: gradients"));
}

TEST(Shares, OfAPartAreCountedFromItsBegin) {
  const v1::JobSpec spec = TinyJob();
  const ParameterLayout layout(spec);
  const Shares shares(layout, spec.train(), 3);
  const Slice part = {shares.of(0).end - 32, shares.of(2).begin + 48};
  EXPECT_THAT(shares.CutsOf(part), ElementsAre(0, 32, part.size() - 48, part.size()));
  EXPECT_THAT(shares.CutsOf({0, 16}), ElementsAre(0, 16, 16, 16));
}

}  // namespace
}  // namespace nsa::train
