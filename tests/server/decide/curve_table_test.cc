#include "server/decide/curve_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "server/decide/curve.h"

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

v1::WorkerRecord Step(int64_t step, double loss) {
  v1::WorkerRecord record;
  record.set_unix_nanos(step * 1'000);
  record.mutable_step()->set_step(step);
  record.mutable_step()->set_loss(loss);
  record.mutable_step()->set_total_tokens(step * 10);
  return record;
}

ColumnNames Names(const std::vector<std::string>& names) { return {names.begin(), names.end()}; }

TEST(CurveTable, HasOneEntryForEachPointInEachColumn) {
  const std::vector<v1::CurveBucket> buckets = {StepBucket(Step(1, 5.95)), StepBucket(Step(2, 4))};
  const v1::CurveTable table = TableOf(buckets, kStepValues, Entries::kOfStep, {});
  EXPECT_THAT(table.first_step(), ElementsAre(1, 2));
  EXPECT_THAT(table.last_step(), ElementsAre(1, 2));
  EXPECT_THAT(table.unix_nanos(), ElementsAre(1'000, 2'000));
  EXPECT_THAT(table.total_tokens(), ElementsAre(10, 20));
  ASSERT_EQ(static_cast<size_t>(table.columns_size()), std::size(kStepValues));
  for (int i = 0; i < table.columns_size(); ++i) {
    EXPECT_EQ(table.columns(i).name(), kStepValues[i]);
    EXPECT_EQ(table.columns(i).mean_size(), 2);
    EXPECT_EQ(table.columns(i).nonfinite_size(), 0) << "none in the whole column";
  }
  EXPECT_THAT(table.columns(0).mean(), ElementsAre(5.95F, 4.0F)) << "the same bits";
}

TEST(CurveTable, AMeanOfManyStepsKeepsItsBits) {
  v1::CurveBucket bucket;
  bucket.set_width(1024);
  for (int64_t step = 1; step <= 1'000; ++step) {
    MergeInto(StepBucket(Step(step, 1 / static_cast<double>(step))), &bucket);
  }
  const v1::CurveTable table = TableOf({bucket}, kStepValues, Entries::kOfStep, Names({"loss"}));
  EXPECT_EQ(table.width(), 1024);
  EXPECT_EQ(table.columns(0).mean(0), bucket.mean(0));
  EXPECT_EQ(table.columns(0).least(0), bucket.least(0));
  EXPECT_EQ(table.columns(0).greatest(0), bucket.greatest(0));
}

TEST(CurveTable, ANanIsANanAndIsCounted) {
  v1::CurveBucket both = StepBucket(Step(2, 3));
  MergeInto(StepBucket(Step(3, kNan)), &both);
  const v1::CurveTable table = TableOf({StepBucket(Step(1, kNan)), both}, kStepValues,
                                       Entries::kOfStep, Names({"loss", "grad_norm"}));
  const v1::CurveColumn& loss = table.columns(0);
  EXPECT_THAT(loss.count(), ElementsAre(0, 1));
  EXPECT_THAT(loss.nonfinite(), ElementsAre(1, 1));
  EXPECT_TRUE(std::isnan(loss.mean(0)) && std::isnan(loss.least(0)));
  EXPECT_EQ(loss.mean(1), 3);
  EXPECT_THAT(table.columns(1).nonfinite(), IsEmpty());
}

TEST(CurveTable, AllLayersOfAStepAreOneValue) {
  v1::WorkerRecord record = Step(1, 1);
  auto& layers = *record.mutable_step()->mutable_layers();
  for (const double kept : {0.5, 0.75}) layers.Add()->mutable_audit()->set_selected_mass(kept);
  layers.Add();
  const v1::CurveTable table = TableOf({LayerBucket(record)}, kLayerValues, Entries::kOfLayers,
                                       Names({"mass_kept", "gate_entropy"}));
  ASSERT_EQ(table.columns_size(), 2);
  EXPECT_EQ(table.columns(0).name(), "gate_entropy");
  EXPECT_EQ(table.columns(0).count(0), 0) << "not measured";
  EXPECT_EQ(table.columns(1).count(0), 2);
  EXPECT_EQ(table.columns(1).mean(0), 0.625F);
  EXPECT_EQ(table.columns(1).least(0), 0.5F);
  EXPECT_EQ(table.columns(1).greatest(0), 0.75F);
}

TEST(CurveTable, KnowsItsColumns) {
  EXPECT_EQ(UnknownColumn({}), "");
  EXPECT_EQ(UnknownColumn(Names({"loss", "mass_kept", "watts"})), "");
  EXPECT_EQ(UnknownColumn(Names({"loss", "los"})), "los");
  EXPECT_TRUE(WantsAny({}, kLayerValues));
  EXPECT_TRUE(WantsAny(Names({"mass_kept"}), kLayerValues));
  EXPECT_FALSE(WantsAny(Names({"loss"}), kLayerValues));
}

TEST(CurveTable, OfTooManyValidationsTheLowestAreKept) {
  std::vector<v1::WorkerRecord> evals;
  for (const double loss : {5.0, 4.0, kNan, 3.0, 3.5, kNan, kNan}) {
    v1::EvalRecord& eval = *evals.emplace_back().mutable_eval();
    eval.set_step(static_cast<int64_t>(10 * evals.size()));
    eval.set_loss(loss);
  }
  EXPECT_THAT(ValidationsOf(evals, 7).step(), ElementsAre(10, 20, 30, 40, 50, 60, 70));
  const v1::ValidationCurve half = ValidationsOf(evals, 4);
  EXPECT_THAT(half.step(), ElementsAre(20, 40, 50, 70));
  EXPECT_TRUE(std::isnan(half.loss(3)));
  EXPECT_EQ(ValidationsOf({}, 4).step_size(), 0);
  EXPECT_EQ(ValidationsOf({evals[0]}, 0).step_size(), 1);
}

}  // namespace
}  // namespace nsa::server
