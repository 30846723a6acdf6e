#include "worker/train/model/weight_window.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tests/testing/status_matchers.h"
#include "tests/worker/train/tiny_job.h"
#include "worker/train/model/shares.h"

namespace nsa::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Pass = Model::Pass;

// Two passes of a model with `layers` blocks, whose parts are gathered into `windows` windows in
// turn. Each part is there when it is read.
std::vector<int32_t> GathersOfTwoPasses(int32_t layers, bool ahead) {
  std::map<int32_t, int32_t> held;  // turn → part
  std::vector<int32_t> gathered;
  const auto turn = [&](int32_t part) { return ahead ? (layers - part) % 2 : 0; };
  const auto read = [&](int32_t part, Pass pass) {
    for (const int32_t next : GathersBefore(part, pass, layers, ahead)) {
      gathered.push_back(next);
      held[turn(next)] = next;
    }
    ASSERT_TRUE(held.contains(turn(part))) << part;
    EXPECT_EQ(held[turn(part)], part);
  };
  for (int pass = 0; pass < 2; ++pass) {
    for (int32_t part = -1; part <= layers; ++part) read(part, Pass::kForward);
    for (int32_t part = layers; part >= 0; --part) read(part, Pass::kBackward);
  }
  read(0, Pass::kAudit);
  return gathered;
}

TEST(GathersBefore, BringEachPartBeforeItIsRead) {
  for (int32_t layers = 1; layers < 6; ++layers) {
    for (const bool ahead : {false, true}) GathersOfTwoPasses(layers, ahead);
  }
}

TEST(GathersBefore, GatherAPartWhileTheOneBeforeItIsComputedWith) {
  EXPECT_THAT(GathersOfTwoPasses(3, /*ahead=*/true),
              ElementsAre(-1, 0, 1, 2, 3, 1, 0, -1, 0, 1, 2, 3, 1, 0, 0))
      << "the last two parts are still there when backward begins";
  EXPECT_THAT(GathersOfTwoPasses(3, /*ahead=*/false),
              ElementsAre(-1, 0, 1, 2, 3, 2, 1, 0, -1, 0, 1, 2, 3, 2, 1, 0, 0));
  EXPECT_THAT(GathersBefore(-1, Pass::kForward, 3, true), ElementsAre(-1, 0));
  EXPECT_THAT(GathersBefore(2, Pass::kForward, 3, true), ElementsAre(3));
  EXPECT_THAT(GathersBefore(2, Pass::kBackward, 3, true), ElementsAre(1));
  EXPECT_THAT(GathersBefore(3, Pass::kBackward, 3, true), IsEmpty());
}

TEST(WeightWindow, ItsPartsAreTheEmbeddingTheBlocksAndTheHead) {
  const v1::JobSpec spec = TinyJob();
  const ParameterLayout layout(spec);
  auto window = WeightWindow::Create(&layout, spec.model().n_layers(), Backend::kCpu);
  ASSERT_OK(window);
  EXPECT_EQ(window->last(), 2);
  EXPECT_EQ(window->part(-1).begin, 0);
  EXPECT_EQ(window->part(2).end, layout.size());
  const auto begin_of = [&](const std::string& name) { return (*layout.Find(name))->offset; };
  EXPECT_EQ(window->part(0).begin, begin_of("blocks.0.norm1.weight"));
  EXPECT_EQ(window->part(1).begin, begin_of("blocks.1.norm1.weight"));
  EXPECT_EQ(window->part(2).begin, begin_of("norm_f.weight"));
  int64_t largest = 0;
  for (int32_t part = -1; part <= 2; ++part) {
    if (part >= 0) {
      EXPECT_EQ(window->part(part).begin, window->part(part - 1).end);
      EXPECT_NE(window->turn(part), window->turn(part - 1));
    }
    largest = std::max(largest, window->part(part).size());
  }
  EXPECT_EQ(window->bytes(), 4 * largest) << "memory for one part";
}

// A window that has one part at a time, and what stands for the weights of other ranks.
struct Windowed {
  Windowed(const v1::JobSpec& spec, const ModelOptions& options, const Arena& all)
      : window(*WeightWindow::Create(&all.layout(), spec.model().n_layers(), Backend::kCpu)) {
    auto made = Model::Create(spec, options, window.arena());
    EXPECT_OK(made);
    model = *std::move(made);
    model->set_before_part([this, &all](int32_t part, Pass pass) {
      if (fail_at == part) return absl::UnavailableError("PEER_LOST: gone");
      order.push_back(part);
      Arena* const arena = window.arena();
      const bool there = GathersBefore(part, pass, window.last(), false).empty();
      if (!there) std::ranges::fill(arena->flat(), NAN);  // of the part before
      window.MoveTo(part);
      if (!there) std::ranges::copy(all.of(arena->slice()), arena->flat().begin());
      return absl::OkStatus();
    });
  }

  WeightWindow window;
  std::unique_ptr<Model> model;
  std::vector<int32_t> order;
  int32_t fail_at = -2;
};

class WeightWindowModel : public ::testing::TestWithParam<Recompute> {
 protected:
  v1::JobSpec spec_ = TinyJob();
  const ParameterLayout layout_{spec_};
  Arena all_{&layout_};
  const ModelOptions options_ = {.batch = 2,
                                 .seq_len = spec_.train().seq_len(),
                                 .training = true,
                                 .statistics = true,
                                 .recompute = GetParam()};
  const std::vector<int32_t> tokens_ =
      TinyTokens(int64_t{2} * spec_.train().seq_len(), spec_.model().vocab(), 1);
  const std::vector<int32_t> targets_ =
      TinyTokens(int64_t{2} * spec_.train().seq_len(), spec_.model().vocab(), 2);
  TokenBatch batch() const { return {.tokens = tokens_, .targets = targets_}; }
};

// Loss, gradients, statistics and audits of a model that reads one part at a time are those of one
// that reads all.
TEST_P(WeightWindowModel, ComputesTheBitsOfAnArenaOfAll) {
  Initialize(7, &all_);
  const auto whole = Model::Create(spec_, options_, &all_);
  ASSERT_OK(whole);
  Windowed parts(spec_, options_, all_);
  for (int round = 0; round < 2; ++round) {
    const auto want = (*whole)->Forward({}, batch()), got = parts.model->Forward({}, batch());
    ASSERT_OK(want);
    ASSERT_OK(got);
    EXPECT_EQ(*got, *want);
    Arena want_gradients(&layout_), got_gradients(&layout_);
    ASSERT_OK((*whole)->Backward({}, 0.01f, &want_gradients));
    ASSERT_OK(parts.model->Backward({}, 0.01f, &got_gradients));
    EXPECT_TRUE(std::ranges::equal(got_gradients.flat(), want_gradients.flat()));
    ASSERT_OK((*whole)->AuditAttention({}, 5));
    ASSERT_OK(parts.model->AuditAttention({}, 5));
    const auto want_stats = (*whole)->TakeLayerStats(), got_stats = parts.model->TakeLayerStats();
    ASSERT_EQ(got_stats.size(), want_stats.size());
    for (size_t layer = 0; layer < want_stats.size(); ++layer) {
      EXPECT_TRUE(want_stats[layer].has_audit());
      EXPECT_EQ(got_stats[layer].SerializeAsString(), want_stats[layer].SerializeAsString());
    }
  }
}

TEST_P(WeightWindowModel, IsAskedForPartsInTheOrderInWhichTheyAreRead) {
  Initialize(7, &all_);
  Windowed parts(spec_, options_, all_);
  ASSERT_OK(parts.model->Forward({}, batch()));
  EXPECT_THAT(parts.order, ElementsAre(-1, 0, 1, 2));
  parts.order.clear();
  Arena gradients(&layout_);
  ASSERT_OK(parts.model->Backward({}, 1.0f, &gradients));
  EXPECT_THAT(parts.order, ElementsAre(2, 1, 0));
  parts.order.clear();
  ASSERT_OK(parts.model->AuditAttention({}, 5));
  if (GetParam() == Recompute::kBlock) {
    EXPECT_THAT(parts.order, ElementsAre(1)) << "backward left the attention of block 0";
  } else {
    EXPECT_THAT(parts.order, IsEmpty());
  }
}

TEST_P(WeightWindowModel, AnErrorOfAGatherEndsThePass) {
  Initialize(7, &all_);
  Windowed parts(spec_, options_, all_);
  parts.fail_at = 1;
  EXPECT_THAT(std::string(parts.model->Forward({}, batch()).status().message()),
              HasSubstr("PEER_LOST"));
}

INSTANTIATE_TEST_SUITE_P(All, WeightWindowModel,
                         ::testing::Values(Recompute::kNothing, Recompute::kNorms, Recompute::kMlp,
                                           Recompute::kBlock),
                         [](const auto& one) { return std::string(RecomputeName(one.param)); });

// The bf16 values of a slice, and of a window that moves, as on a GPU; in host memory here.
TEST(Arena, HasBf16ValuesOfAllOfASliceOrOfAWindow) {
  const ParameterLayout layout(TinyJob());
  const Slice own = {64, 160};
  const auto all = Arena::Create(&layout, {.half = true, .slice = own}, "all");
  const auto slice = Arena::Create(&layout, {.half = true, .slice = own, .half_slice = true}, "");
  auto window = Arena::Create(&layout, {.half = true, .room = 256}, "window");
  ASSERT_OK(all);
  ASSERT_OK(slice);
  ASSERT_OK(window);
  EXPECT_EQ(all->half_slice(), (Slice{0, layout.size()}));
  EXPECT_EQ(all->bytes(), 4 * own.size() + 2 * (layout.size() + layout.tail()));
  EXPECT_EQ(slice->half_slice(), own);
  EXPECT_EQ(slice->bytes(), 6 * own.size());
  EXPECT_EQ(slice->weight(own.begin, 16).data, slice->half().data);
  EXPECT_EQ(window->bytes(), 2 * 256);
  window->MoveTo({16, 48}, 0);
  const auto* const first = static_cast<const std::byte*>(window->weight(16, 8).data);
  window->MoveTo({800, 1000}, 32);
  EXPECT_EQ(static_cast<const std::byte*>(window->weight(810, 8).data), first + 2 * (32 + 10));
  EXPECT_EQ(window->half_slice(), (Slice{800, 1000}));
  EXPECT_THAT(window->flat(), IsEmpty()) << "no floats";
}

}  // namespace
}  // namespace nsa::train
