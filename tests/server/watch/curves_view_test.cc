#include "server/watch/curves_view.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "server/decide/curve.h"
#include "tests/server/store/job_store_fixture.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;

class CurvesViewTest : public JobStoreFixture {
 protected:
  CurvesViewTest() : id_(Insert("demo")) {}

  v1::WorkerRecord& Next() {
    v1::WorkerRecord& record = *request_.add_records();
    record.set_sequence(++sequence_);
    record.set_unix_nanos(1'000 * sequence_);
    return record;
  }
  void Store() {
    request_.set_job_id(id_);
    request_.set_generation(1);
    ASSERT_OK(store_->AppendRecords(request_).status());
    request_.Clear();
  }
  void AddSteps(int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; ++step) {
      v1::StepRecord& record = *Next().mutable_step();
      record.set_step(step);
      record.set_loss(static_cast<double>(step));
      for (const double kept : {0.5, 1.0}) {
        record.add_layers()->mutable_audit()->set_selected_mass(kept);
      }
      if (step % 500 == 0 || step == last) Store();
    }
  }
  v1::GetCurvesResponse Get(const v1::GetCurvesRequest& request) {
    const auto curves = CurvesOf(*store_, id_, request);
    EXPECT_OK(curves.status());
    return curves.ok() ? *curves : v1::GetCurvesResponse();
  }

  const std::string id_;
  v1::ReportRecordsRequest request_;
  int64_t sequence_ = 0;
};

TEST_F(CurvesViewTest, SendsTheBucketsOfTheStore) {
  AddSteps(1, 5'000);
  v1::GetCurvesRequest request;
  const v1::GetCurvesResponse all = Get(request);
  const auto buckets = *store_->Buckets(id_, CurveKind::kSteps, 0);
  ASSERT_EQ(static_cast<size_t>(all.steps().last_step_size()), buckets.size());
  EXPECT_EQ(all.steps().width(), 4);
  for (size_t i = 0; i < buckets.size(); ++i) {
    EXPECT_EQ(all.steps().first_step(static_cast<int>(i)), buckets[i].first_step());
    EXPECT_EQ(all.steps().columns(0).mean(static_cast<int>(i)), buckets[i].mean(0));
  }
  EXPECT_EQ(static_cast<size_t>(all.layers().columns_size()), kLayerValueCount);
  EXPECT_THAT(all.layers().last_step_size(), Le(static_cast<int>(kLayerBuckets)));
  EXPECT_EQ(all.gpus().last_step_size(), 0);
  EXPECT_EQ(all.marks_size(), 0) << "not asked for";

  request.set_points(100);
  request.add_columns("mass_kept");
  const v1::GetCurvesResponse few = Get(request);
  EXPECT_THAT(few.steps().last_step_size(), AllOf(Ge(50), Le(100))) << "where the steps lie";
  EXPECT_EQ(few.steps().columns_size(), 0);
  ASSERT_EQ(few.layers().columns_size(), 1);
  EXPECT_EQ(few.layers().columns(0).mean(0), 0.75F) << "of both layers";
  request.set_from_step(4'000);
  EXPECT_THAT(Get(request).steps().first_step(0), Ge(4'000));
}

TEST_F(CurvesViewTest, SendsValidationsStartsAndMarks) {
  Next().mutable_started()->set_device("cpu");
  AddSteps(1, 10);
  for (const int64_t step : {5, 10}) {
    v1::EvalRecord& eval = *Next().mutable_eval();
    eval.set_step(step);
    eval.set_loss(2.5);
    Next().mutable_sample()->set_step(step);
    v1::CheckpointRecord& checkpoint = *Next().mutable_checkpoint();
    checkpoint.set_step(step);
    if (step == 5) checkpoint.set_error("disk full");
  }
  Store();
  v1::GetCurvesRequest request;
  request.set_marks(true);
  const v1::GetCurvesResponse all = Get(request);
  EXPECT_EQ(all.job_id(), id_);
  EXPECT_THAT(all.validations().step(), ElementsAre(5, 10));
  EXPECT_THAT(all.validations().loss(), ElementsAre(2.5, 2.5));
  EXPECT_THAT(all.start_unix_nanos(), ElementsAre(1'000));
  ASSERT_EQ(all.marks_size(), 3);
  EXPECT_EQ(all.marks(0).started().device(), "cpu");
  EXPECT_EQ(all.marks(1).sample().step(), 10) << "of the newest validation";
  EXPECT_EQ(all.marks(2).checkpoint().error(), "disk full");
}

TEST_F(CurvesViewTest, RefusesWhatThereIsNot) {
  v1::GetCurvesRequest request;
  for (const int points : {-1, 2'049}) {
    request.set_points(points);
    EXPECT_THAT(std::string(CurvesOf(*store_, id_, request).status().message()),
                HasSubstr("(0 to 2048); "));
  }
  request.set_points(0);
  request.add_columns("los");
  EXPECT_THAT(std::string(CurvesOf(*store_, id_, request).status().message()),
              HasSubstr("columns: 'los'"));
  request.clear_columns();
  request.set_from_step(-1);
  EXPECT_TRUE(absl::IsInvalidArgument(CurvesOf(*store_, id_, request).status()));
  EXPECT_TRUE(absl::IsNotFound(CurvesOf(*store_, "jnone", {}).status()));
}

TEST_F(CurvesViewTest, AMillionStepsAreLessThanAMegabyte) {
  constexpr int kLayers = 24;
  ASSERT_OK(store_
                ->Update(id_,
                         [](v1::StoredJob* job, std::vector<v1::JobEvent>*) {
                           job->mutable_job()->mutable_spec()->mutable_model()->set_n_layers(
                               kLayers);
                           return absl::OkStatus();
                         })
                .status());
  for (int64_t step = 50; step <= 1'000'000; step += 50) {
    v1::StepRecord& record = *Next().mutable_step();
    record.set_step(step);
    record.set_loss(1 / static_cast<double>(step));
    record.set_total_tokens(step << 20);
    for (int layer = 0; layer < kLayers; ++layer) {
      v1::LayerStats& stats = *record.add_layers();
      stats.set_layer(layer);
      stats.mutable_gate()->set_entropy_mean(1 / static_cast<double>(layer + step));
    }
    if (step % 1'000 != 0) continue;
    v1::EvalRecord& eval = *Next().mutable_eval();
    eval.set_step(step);
    eval.set_loss(2);
    if (step % 25'000 == 0) Store();
  }
  v1::GetCurvesRequest request;
  request.set_marks(true);
  const v1::GetCurvesResponse all = Get(request);
  EXPECT_EQ(all.steps().last_step(all.steps().last_step_size() - 1), 1'000'000);
  EXPECT_EQ(all.validations().step_size(), 1'000);
  EXPECT_LT(all.ByteSizeLong(), 1'000'000u) << "with every column";
}

}  // namespace
}  // namespace nsa::server
