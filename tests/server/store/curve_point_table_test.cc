// The curves that the store keeps of a job, and the step records that it drops.
#include <algorithm>

#include "server/decide/curve.h"
#include "tests/server/store/job_store_fixture.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::SizeIs;

class CurvePointTableTest : public JobStoreFixture {
 protected:
  // Appends one record of rank 0, after those before it.
  void Add(const std::string& id, v1::WorkerRecord record, int64_t generation = 1) {
    v1::ReportRecordsRequest request;
    request.set_job_id(id);
    request.set_generation(generation);
    record.set_sequence(++sequence_);
    *request.add_records() = std::move(record);
    ASSERT_OK(store_->AppendRecords(request).status());
  }
  void AddStart(const std::string& id, int64_t resumed_step, int64_t generation = 1) {
    v1::WorkerRecord record;
    record.mutable_started()->set_resumed_step(resumed_step);
    Add(id, record, generation);
  }
  void AddEval(const std::string& id, int64_t step, double loss) {
    v1::WorkerRecord record;
    record.mutable_eval()->set_step(step);
    record.mutable_eval()->set_loss(loss);
    Add(id, record);
  }
  void AddSample(const std::string& id, int64_t step, const std::string& text,
                 int64_t generation = 1) {
    v1::WorkerRecord record;
    record.mutable_sample()->set_step(step);
    record.mutable_sample()->set_text(text);
    Add(id, record, generation);
  }
  // The step of the samples at or before `step`, and their texts.
  std::string SamplesAt(const std::string& id, int64_t step) {
    const auto samples = store_->SamplesAt(id, step);
    EXPECT_OK(samples.status());
    if (!samples.ok()) return "";
    std::string text = std::to_string(samples->step) + ":";
    for (const v1::WorkerRecord& record : samples->records) text += " " + record.sample().text();
    return text;
  }
  // Steps `first` to `last` in requests of 500, with layers.
  void AddSteps(const std::string& id, int64_t first, int64_t last, int64_t generation = 1,
                double loss = 1) {
    while (first <= last) {
      v1::ReportRecordsRequest request;
      request.set_job_id(id);
      request.set_generation(generation);
      for (int64_t end = std::min(first + 499, last); first <= end; ++first) {
        v1::WorkerRecord* record = request.add_records();
        record->set_sequence(++sequence_);
        record->mutable_step()->set_step(first);
        record->mutable_step()->set_loss(first == kSpike ? 100 : loss);
        record->mutable_step()->add_layers()->mutable_gate()->set_entropy_mean(1);
      }
      ASSERT_OK(store_->AppendRecords(request).status());
    }
  }
  // One step, and what was measured of the job's GPUs meanwhile.
  void AddMeasured(const std::string& id, int64_t step, const std::vector<v1::GpuInfo>& gpus,
                   int64_t generation = 1) {
    v1::ReportRecordsRequest request;
    request.set_job_id(id);
    request.set_generation(generation);
    v1::WorkerRecord* record = request.add_records();
    record->set_sequence(++sequence_);
    record->mutable_step()->set_step(step);
    ASSERT_OK(store_->AppendRecords(request, gpus).status());
  }
  std::vector<v1::CurveBucket> Buckets(const std::string& id, CurveKind kind = CurveKind::kSteps,
                                       int64_t from = 0) {
    const auto buckets = store_->Buckets(id, kind, from);
    EXPECT_OK(buckets.status());
    return buckets.ok() ? *buckets : std::vector<v1::CurveBucket>();
  }
  std::vector<int64_t> StepsWithEval(const std::string& id) {
    std::vector<int64_t> steps;
    const auto marks = store_->Marks(id, CurveKind::kEval);
    EXPECT_OK(marks.status());
    if (!marks.ok()) return steps;
    for (const v1::WorkerRecord& mark : *marks) steps.push_back(mark.eval().step());
    return steps;
  }
  static int64_t StepsIn(const std::vector<v1::CurveBucket>& buckets) {
    int64_t steps = 0;
    for (const v1::CurveBucket& bucket : buckets) steps += bucket.count(0);
    return steps;
  }
  // A job starts its next generation.
  void NextGeneration(const std::string& id) {
    sequence_ = 0;
    ASSERT_OK(store_
                  ->Update(id,
                           [](v1::StoredJob* job, std::vector<v1::JobEvent>*) {
                             job->mutable_job()->set_generation(job->job().generation() + 1);
                             return absl::OkStatus();
                           })
                  .status());
  }

  static constexpr int64_t kSpike = 4'321;
  int64_t sequence_ = 0;
};

TEST_F(CurvePointTableTest, AShortJobHasOneBucketForEachStep) {
  const std::string id = Insert("demo");
  AddSteps(id, 1, 20);
  const auto buckets = Buckets(id);
  ASSERT_THAT(buckets, SizeIs(20));
  EXPECT_EQ(buckets[6].first_step(), 7);
  EXPECT_THAT(Buckets(id, CurveKind::kSteps, 15), SizeIs(6)) << "only what is new";
  EXPECT_THAT(Buckets(id, CurveKind::kLayers), SizeIs(20));
}

TEST_F(CurvePointTableTest, ALongJobHasABoundedCurveThatKeepsEverySpike) {
  const std::string id = Insert("demo");
  AddSteps(id, 1, 9'000);
  for (int life = 0; life < 2; ++life) {
    const auto buckets = Buckets(id);
    EXPECT_THAT(buckets.size(), AllOf(Ge(kStepBuckets / 2), Le(kStepBuckets)));
    EXPECT_EQ(StepsIn(buckets), 9'000);
    EXPECT_EQ(buckets.front().first_step(), 1);
    EXPECT_EQ(buckets.back().last_step(), 9'000);
    float greatest = 0;
    for (const v1::CurveBucket& bucket : buckets) {
      greatest = std::max(greatest, bucket.greatest(0));
    }
    EXPECT_EQ(greatest, 100);
    EXPECT_THAT(Buckets(id, CurveKind::kLayers).size(), Le(kLayerBuckets));
    Reopen();
  }
  AddSteps(id, 9'001, 9'010);
  EXPECT_EQ(StepsIn(Buckets(id)), 9'010) << "a store that was opened again goes on";
}

TEST_F(CurvePointTableTest, ARestartRepeatsNoStepInTheCurve) {
  const std::string id = Insert("demo");
  AddSteps(id, 1, 30);
  AddEval(id, 10, 2.0);
  AddEval(id, 30, 1.5);
  NextGeneration(id);
  AddStart(id, 20, 2);
  EXPECT_THAT(Buckets(id), SizeIs(20)) << "later steps are done again";
  EXPECT_THAT(StepsWithEval(id), ElementsAre(10));
  AddSteps(id, 21, 40, 2, 3);
  const auto buckets = Buckets(id);
  ASSERT_THAT(buckets, SizeIs(40));
  EXPECT_EQ(buckets[24].mean(0), 3);
  const auto starts = store_->Marks(id, CurveKind::kStart);
  ASSERT_OK(starts.status());
  ASSERT_THAT(*starts, SizeIs(1));
  EXPECT_EQ(starts->front().started().resumed_step(), 20);
}

TEST_F(CurvePointTableTest, ARestartInTheMiddleOfABucketCountsNoStepTwice) {
  const std::string id = Insert("demo");
  AddSteps(id, 1, 5'000);
  ASSERT_GT(Buckets(id).front().width(), 1);
  NextGeneration(id);
  AddStart(id, 2'501, 2);
  AddSteps(id, 2'502, 5'000, 2);
  EXPECT_EQ(StepsIn(Buckets(id)), 5'000);
}

TEST_F(CurvePointTableTest, OnlyTheNewestStepRecordsAreKept) {
  const std::string id = Insert("demo");
  AddStart(id, 0);
  AddSteps(id, 1, 100);
  AddEval(id, 100, 2.0);
  AddSteps(id, 101, 20'600);
  const auto records = store_->Records(id, 0, 0, 30'000);
  ASSERT_OK(records.status());
  int64_t first = 0;
  int evals = 0;
  int starts = 0;
  for (const auto& record : *records) {
    if (first == 0 && record.record().has_step()) first = record.record().step().step();
    evals += record.record().has_eval() ? 1 : 0;
    starts += record.record().has_started() ? 1 : 0;
  }
  EXPECT_EQ(first, 601);
  EXPECT_EQ(evals, 1) << "only steps are dropped";
  EXPECT_EQ(starts, 1);
  EXPECT_EQ(StepsIn(Buckets(id)), 20'600) << "the curve keeps them all";
  EXPECT_EQ(store_->Journal(id, 1, 0)->next_sequence, sequence_ + 1);
  Reopen();
  EXPECT_EQ(store_->Journal(id, 1, 0)->next_sequence, sequence_ + 1);
}

TEST_F(CurvePointTableTest, AJobOfAnEarlierVersionGetsACurveOfItsRecords) {
  const std::string id = Insert("demo");
  AddStart(id, 0);
  AddSteps(id, 1, 300);
  AddEval(id, 300, 2.0);
  store_.reset();
  auto database = Database::Open(folder_ / "jobs.sqlite");
  ASSERT_OK(database.status());
  ASSERT_OK((*database)->Execute("DROP TABLE curve"));
  database->reset();
  Reopen();
  EXPECT_EQ(StepsIn(Buckets(id)), 300);
  EXPECT_THAT(StepsWithEval(id), ElementsAre(300));
  AddSteps(id, 301, 310);
  EXPECT_EQ(StepsIn(Buckets(id)), 310);
}

TEST_F(CurvePointTableTest, OtherRanksAndDeletedJobsLeaveNoCurve) {
  const std::string id = Insert("demo");
  ASSERT_OK(Append(id, 1, 1, 5).status());
  EXPECT_THAT(Buckets(id), IsEmpty());
  EXPECT_THAT(store_->Buckets("gone", CurveKind::kSteps, 0).status(),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(store_->Buckets(id, CurveKind::kEval, 0).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(store_->Marks(id, CurveKind::kSteps).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(CurvePointTableTest, SamplesAreFoundByStepAndRewoundWithTheSteps) {
  const std::string id = Insert("demo");
  EXPECT_EQ(SamplesAt(id, INT64_MAX), "0:");
  AddStart(id, 0);
  for (const int64_t step : {10, 20, 30}) {
    AddSample(id, step, "a" + std::to_string(step));
    AddSample(id, step, "b" + std::to_string(step));
  }
  Reopen();
  EXPECT_EQ(SamplesAt(id, INT64_MAX), "30: a30 b30");
  EXPECT_EQ(SamplesAt(id, 29), "20: a20 b20");
  EXPECT_EQ(SamplesAt(id, 9), "0:") << "nothing so early";
  NextGeneration(id);
  AddStart(id, 15, 2);
  EXPECT_EQ(SamplesAt(id, INT64_MAX), "10: a10 b10");
  AddSample(id, 20, "again", 2);
  EXPECT_EQ(SamplesAt(id, INT64_MAX), "20: again") << "a repeated step appears once";
  EXPECT_THAT(store_->SamplesAt(id, 20)->steps, ElementsAre(10, 20));
  EXPECT_THAT(store_->SamplesAt("gone", 1).status(), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(CurvePointTableTest, SamplesOfTheNewestThousandValidationsAreKept) {
  const std::string id = Insert("demo");
  v1::ReportRecordsRequest request;
  request.set_job_id(id);
  request.set_generation(1);
  for (int64_t step = 1; step <= 1'003; ++step) {
    v1::WorkerRecord* record = request.add_records();
    record->set_sequence(++sequence_);
    record->mutable_sample()->set_step(step);
  }
  ASSERT_OK(store_->AppendRecords(request).status());
  const auto samples = store_->SamplesAt(id, INT64_MAX);
  ASSERT_OK(samples.status());
  EXPECT_THAT(samples->steps, SizeIs(1'000));
  EXPECT_EQ(samples->steps.front(), 4);
  EXPECT_EQ(samples->step, 1'003);
}

TEST_F(CurvePointTableTest, GpusHaveACurveThatSurvivesARestartAndIsRewound) {
  const std::string id = Insert("demo");
  v1::GpuInfo busy;
  busy.set_utilization_ratio(0.9);
  busy.set_power_watts(600);
  v1::GpuInfo idle;
  idle.set_utilization_ratio(0.1);
  AddMeasured(id, 1, {});
  AddMeasured(id, 2, {busy, idle});
  AddMeasured(id, 3, {v1::GpuInfo()});  // its driver reports nothing
  AddMeasured(id, 4, {idle});
  const auto steps = [&] {
    std::vector<int64_t> found;
    for (const auto& bucket : Buckets(id, CurveKind::kGpus)) found.push_back(bucket.first_step());
    return found;
  };
  EXPECT_THAT(steps(), ElementsAre(2, 4));
  Reopen();
  ASSERT_THAT(steps(), ElementsAre(2, 4));
  const v1::CurveBucket both = Buckets(id, CurveKind::kGpus)[0];
  EXPECT_EQ(both.count(0), 2);
  EXPECT_FLOAT_EQ(both.mean(0), 0.5);
  EXPECT_FLOAT_EQ(both.least(0), 0.1);
  EXPECT_FLOAT_EQ(both.greatest(0), 0.9);
  EXPECT_EQ(both.count(1), 1) << "one of them reports its power";
  EXPECT_FLOAT_EQ(both.mean(1), 600);
  EXPECT_EQ(both.count(2), 0);
  NextGeneration(id);
  AddStart(id, 3, 2);
  AddMeasured(id, 4, {busy}, 2);
  EXPECT_THAT(steps(), ElementsAre(2, 4));
  EXPECT_FLOAT_EQ(Buckets(id, CurveKind::kGpus)[1].mean(0), 0.9) << "step 4 was done again";
}

TEST_F(CurvePointTableTest, TheCurveOfTheGpusIsBounded) {
  const std::string id = Insert("demo");
  v1::GpuInfo gpu;
  for (int64_t step = 1; step <= 1'200; ++step) {
    gpu.set_utilization_ratio(step == 700 ? 1 : 0.5);
    AddMeasured(id, step, {gpu});
  }
  const auto buckets = Buckets(id, CurveKind::kGpus);
  EXPECT_THAT(buckets.size(), AllOf(Ge(kLayerBuckets / 2), Le(kLayerBuckets)));
  EXPECT_EQ(StepsIn(buckets), 1'200);
  EXPECT_EQ(std::ranges::count_if(buckets, [](const auto& one) { return one.greatest(0) == 1; }),
            1);
}

}  // namespace
}  // namespace nsa::server
