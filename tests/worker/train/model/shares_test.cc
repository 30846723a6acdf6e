#include "worker/train/model/shares.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/worker/train/tiny_job.h"
#include "worker/train/model/optimizer.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {
namespace {

v1::JobSpec JobWith(v1::Optimizer optimizer) {
  v1::JobSpec spec = TinyJob();
  spec.mutable_train()->set_optimizer(optimizer);
  return spec;
}

TEST(Slice, HasWhatTwoHaveInCommon) {
  EXPECT_EQ((Slice{2, 9}.Common({5, 20})), (Slice{5, 9}));
  EXPECT_EQ((Slice{2, 9}.Common({3, 4})), (Slice{3, 4}));
  EXPECT_TRUE((Slice{2, 9}.Common({9, 20})).empty());
  EXPECT_TRUE((Slice{2, 9}.Common({30, 40})).empty());
}

TEST(Shares, CoverEverythingInRankOrder) {
  for (const v1::Optimizer optimizer : {v1::OPTIMIZER_ADAMW, v1::OPTIMIZER_MUON}) {
    const v1::JobSpec spec = JobWith(optimizer);
    const ParameterLayout layout(spec);
    for (int32_t ranks = 1; ranks <= 64; ++ranks) {
      const Shares shares(layout, spec.train(), ranks);
      ASSERT_EQ(shares.ranks(), ranks);
      int64_t covered = 0;
      for (int32_t rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(shares.of(rank).begin, covered);
        EXPECT_GE(shares.of(rank).end, covered);
        EXPECT_EQ(covered % 16, 0) << "of an element that a GPU reads first";
        covered = shares.of(rank).end;
      }
      EXPECT_EQ(covered, layout.size());
    }
  }
}

TEST(Shares, OfAdamWAreEven) {
  const v1::JobSpec spec = JobWith(v1::OPTIMIZER_ADAMW);
  const ParameterLayout layout(spec);
  for (const int32_t ranks : {2, 3, 7}) {
    const Shares shares(layout, spec.train(), ranks);
    for (int32_t rank = 0; rank < ranks; ++rank) {
      EXPECT_NEAR(static_cast<double>(shares.of(rank).size()),
                  static_cast<double>(layout.size()) / ranks, 16);
    }
  }
}

TEST(Shares, OfMuonHaveWholeMatricesAndAreNearlyEven) {
  v1::JobSpec spec = JobWith(v1::OPTIMIZER_MUON);
  spec.mutable_model()->set_n_layers(6);
  const ParameterLayout layout(spec);
  int64_t largest = 0, moved = 0;
  for (const ParameterInfo& tensor : layout.tensors()) {
    if (tensor.hidden) largest = std::max(largest, tensor.size);
  }
  for (int32_t ranks = 2; ranks <= 64; ++ranks) {
    const Shares shares(layout, spec.train(), ranks);
    for (int32_t rank = 1; rank < ranks; ++rank) {
      const int64_t cut = shares.cuts()[rank], even = layout.size() * rank / ranks;
      for (const ParameterInfo& tensor : layout.tensors()) {
        if (!tensor.hidden) continue;
        EXPECT_FALSE(tensor.offset < cut && cut < tensor.offset + tensor.size) << tensor.name;
      }
      EXPECT_LE(std::abs(cut - even), largest / 2 + 16);
      if (std::abs(cut - even) > 16) ++moved;
    }
  }
  EXPECT_GT(moved, 0) << "no cut was inside a matrix";
}

// Values that differ from element to element, and from step to step.
void Fill(std::span<float> values, uint32_t salt) {
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t bits = (static_cast<uint32_t>(i) + 1) * 2654435761u ^ salt * 0x9e3779b9u;
    values[i] = (static_cast<float>(bits % 20011) - 10005.0f) * 1.37e-6f;
  }
}

class OptimizerOfShares : public ::testing::TestWithParam<v1::Optimizer> {};

TEST_P(OptimizerOfShares, GivesTheBitsOfOneForEverything) {
  const v1::JobSpec spec = JobWith(GetParam());
  const ParameterLayout layout(spec);
  for (const int32_t ranks : {1, 2, 3, 5, 40}) {
    const Shares shares(layout, spec.train(), ranks);
    Arena whole(&layout), divided(&layout), gradients(&layout);
    Initialize(3, &whole);
    Initialize(3, &divided);
    Optimizer one(spec.train(), &layout);
    std::vector<Optimizer> many;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      auto optimizer = Optimizer::Create(spec.train(), &layout, Backend::kCpu, shares.of(rank));
      ASSERT_TRUE(optimizer.ok()) << optimizer.status();
      many.push_back(*std::move(optimizer));
    }
    for (int64_t step = 1; step <= 3; ++step) {
      Fill(gradients.flat(), static_cast<uint32_t>(step));
      ASSERT_TRUE(one.Update({}, step, 1e-2, 2.5, gradients, &whole).ok());
      for (Optimizer& optimizer : many) {
        const absl::Status updated = optimizer.Update({}, step, 1e-2, 2.5, gradients, &divided);
        ASSERT_TRUE(updated.ok()) << updated;
      }
    }
    EXPECT_TRUE(std::ranges::equal(whole.flat(), divided.flat())) << ranks;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      const Slice share = shares.of(rank);
      EXPECT_EQ(many[rank].first_moment().slice(), share);
      EXPECT_EQ(many[rank].first_moment().bytes(), 4 * share.size()) << "only of its share";
      if (share.empty()) continue;
      EXPECT_TRUE(
          std::ranges::equal(many[rank].first_moment().flat(), one.first_moment().of(share)));
      EXPECT_TRUE(
          std::ranges::equal(many[rank].second_moment().flat(), one.second_moment().of(share)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Both, OptimizerOfShares,
                         ::testing::Values(v1::OPTIMIZER_ADAMW, v1::OPTIMIZER_MUON),
                         [](const auto& optimizer) {
                           return optimizer.param == v1::OPTIMIZER_MUON ? "Muon" : "AdamW";
                         });

TEST(CopyArena, CopiesTheElementsThatBothHave) {
  const ParameterLayout layout(TinyJob());
  Arena whole(&layout), part(&layout, Slice{32, 96}), other(&layout, Slice{80, 160});
  Fill(whole.flat(), 1);
  ASSERT_TRUE(CopyArena({}, whole, &part).ok());
  EXPECT_TRUE(std::ranges::equal(part.flat(), whole.flat().subspan(32, 64)));
  ASSERT_TRUE(CopyArena({}, part, &other).ok());
  EXPECT_TRUE(std::ranges::equal(other.of(Slice{80, 96}), whole.flat().subspan(80, 16)));
  EXPECT_EQ(other.flat()[16], 0) << "the first that `part` does not have";
  Arena far(&layout, Slice{320, 336});
  ASSERT_TRUE(CopyArena({}, part, &far).ok());
  EXPECT_TRUE(std::ranges::all_of(far.flat(), [](float value) { return value == 0; }));
}

}  // namespace
}  // namespace nsa::train
