#include "server/decide/curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string_view>

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::SizeIs;

v1::WorkerRecord Step(int64_t step, double loss) {
  v1::WorkerRecord record;
  record.set_unix_nanos(step * 1'000);
  record.mutable_step()->set_step(step);
  record.mutable_step()->set_loss(loss);
  record.mutable_step()->set_total_tokens(step * 10);
  return record;
}

std::vector<v1::CurveBucket> Steps(int64_t count) {
  std::vector<v1::CurveBucket> buckets;
  for (int64_t step = 1; step <= count; ++step) buckets.push_back(StepBucket(Step(step, 1)));
  return buckets;
}

TEST(Curve, AStepHasOneEntryForEachValue) {
  const v1::CurveBucket bucket = StepBucket(Step(7, 2.5));
  EXPECT_EQ(static_cast<size_t>(bucket.count_size()), std::size(kStepValues));
  EXPECT_THAT(bucket.mean(0), FloatEq(2.5F));
  EXPECT_EQ(bucket.first_step(), 7);
  EXPECT_EQ(bucket.last_step(), 7);
  EXPECT_EQ(bucket.total_tokens(), 70);
}

TEST(Curve, EveryLayerHasOneEntryForEachValue) {
  v1::WorkerRecord record = Step(1, 1);
  for (int layer = 0; layer < 3; ++layer) {
    v1::LayerStats& stats = *record.mutable_step()->add_layers();
    stats.mutable_gate()->set_entropy_mean(layer + 0.5);
    for (const double share : {0.2, 0.3, 0.5}) stats.mutable_gate()->add_branch_share(share);
  }
  const v1::CurveBucket bucket = LayerBucket(record);
  ASSERT_EQ(static_cast<size_t>(bucket.count_size()), 3 * kLayerValueCount);
  EXPECT_THAT(bucket.mean(static_cast<int>(2 * kLayerValueCount)), FloatEq(2.5F));
  EXPECT_THAT(bucket.mean(static_cast<int>(kLayerValueCount) + 6), FloatEq(0.5F)) << "share_win";
  EXPECT_EQ(bucket.count(12), 0) << "a step without an audit has no mass";
}

TEST(Curve, EntriesThatFollowAnotherListAreFoundByName) {
  v1::StoredColumns stored;
  for (const char* name : {"gone", "second", "first"}) stored.add_names(name);
  v1::CurveBucket bucket = StepBucket(Step(7, 1));
  bucket.clear_count();
  bucket.clear_mean();
  bucket.clear_least();
  bucket.clear_greatest();
  for (int entry = 0; entry < 6; ++entry) {  // of two layers
    bucket.add_count(entry == 4 ? 0 : entry + 1);
    bucket.add_mean(entry == 4 ? 0 : 10.0F + static_cast<float>(entry));
    bucket.add_least(entry == 4 ? 0 : 5.0F);
    bucket.add_greatest(entry == 4 ? 0 : 20.0F + static_cast<float>(entry));
    bucket.add_nonfinite(entry == 4 ? 3 : 0);
  }
  const std::string_view names[] = {"first", "new", "second"};
  const v1::CurveBucket ours = Arranged(bucket, OrderOf(stored, names));
  EXPECT_THAT(ours.count(), ElementsAre(3, 0, 2, 6, 0, 0));
  EXPECT_THAT(ours.mean(), ElementsAre(12, 0, 11, 15, 0, 0));
  EXPECT_THAT(ours.least(), ElementsAre(5, 0, 5, 5, 0, 0));
  EXPECT_THAT(ours.greatest(), ElementsAre(22, 0, 21, 25, 0, 0));
  EXPECT_THAT(ours.nonfinite(), ElementsAre(0, 0, 0, 0, 0, 3));
  EXPECT_EQ(ours.first_step(), 7);
  EXPECT_EQ(ours.last_step(), 7);
  EXPECT_EQ(ours.width(), 1);
  EXPECT_EQ(ours.total_tokens(), 70);
  EXPECT_EQ(ours.unix_nanos(), 7'000);
}

TEST(Curve, AMergeKeepsTheMeanAndBothEnds) {
  v1::CurveBucket bucket;
  bucket.set_width(4);
  for (const double loss : {3.0, 9.0, 1.0, 3.0}) {
    MergeInto(StepBucket(Step(bucket.last_step() + 1, loss)), &bucket);
  }
  EXPECT_EQ(bucket.first_step(), 1);
  EXPECT_EQ(bucket.last_step(), 4);
  EXPECT_EQ(bucket.width(), 4);
  EXPECT_EQ(bucket.count(0), 4);
  EXPECT_THAT(bucket.mean(0), FloatEq(4));
  EXPECT_THAT(bucket.least(0), FloatEq(1));
  EXPECT_THAT(bucket.greatest(0), FloatEq(9));
}

TEST(Curve, ALossThatIsNotFiniteSpoilsNoMean) {
  v1::CurveBucket bucket = StepBucket(Step(1, std::numeric_limits<double>::quiet_NaN()));
  EXPECT_EQ(bucket.count(0), 0);
  MergeInto(StepBucket(Step(2, 2)), &bucket);
  MergeInto(StepBucket(Step(3, std::numeric_limits<double>::infinity())), &bucket);
  EXPECT_EQ(bucket.count(0), 1);
  EXPECT_THAT(bucket.mean(0), FloatEq(2));
  EXPECT_THAT(bucket.least(0), FloatEq(2));
  ASSERT_EQ(bucket.nonfinite_size(), bucket.count_size());
  EXPECT_EQ(bucket.nonfinite(0), 2) << "and is counted";
  EXPECT_EQ(bucket.nonfinite(2), 0);
}

TEST(Curve, BucketsOfFiniteValuesCountNoOthers) {
  v1::CurveBucket bucket = StepBucket(Step(1, 1));
  MergeInto(StepBucket(Step(2, 1e300)), &bucket);
  EXPECT_EQ(bucket.nonfinite_size(), 0);
  EXPECT_EQ(bucket.greatest(0), std::numeric_limits<float>::max()) << "what a float cannot hold";
}

TEST(Curve, BucketsBeginAtTheStepAfterAMultipleOfTheirWidth) {
  EXPECT_EQ(BucketStart(1, 4), 1);
  EXPECT_EQ(BucketStart(4, 4), 1);
  EXPECT_EQ(BucketStart(5, 4), 5);
  EXPECT_EQ(BucketStart(0, 0), 1) << "whatever a damaged file says";
}

TEST(Curve, WideningKeepsEverySpike) {
  std::vector<v1::CurveBucket> buckets = Steps(1'000);
  buckets[620] = StepBucket(Step(621, 50));
  const int64_t width = WidthFor(buckets, 100);
  EXPECT_EQ(width, 16);
  const auto wide = Widen(buckets, width);
  EXPECT_THAT(wide, SizeIs(63));
  float greatest = 0;
  int64_t steps = 0;
  for (const v1::CurveBucket& bucket : wide) {
    greatest = std::max(greatest, bucket.greatest(0));
    steps += bucket.count(0);
  }
  EXPECT_THAT(greatest, FloatEq(50));
  EXPECT_EQ(steps, 1'000);
}

TEST(Curve, AWidthIsFoundForAnyNumberOfBuckets) {
  EXPECT_EQ(WidthFor({}, 10), 1);
  EXPECT_EQ(WidthFor(Steps(10), 10), 1);
  EXPECT_EQ(WidthFor(Steps(11), 10), 2);
  EXPECT_EQ(WidthFor(Steps(11), 0), 16) << "at least one bucket";
  std::vector<v1::CurveBucket> far = Steps(2);
  far[1].set_first_step(std::numeric_limits<int64_t>::max());
  EXPECT_GT(WidthFor(far, 1), int64_t{1} << 60);
}

}  // namespace
}  // namespace nsa::server
