// A job's progress, computed from its records.
#include "server/decide/progress.h"

#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nsa::server {
namespace {

v1::WorkerRecord StepAt(int64_t step, double speed, double seconds = 0.5) {
  v1::WorkerRecord record;
  record.mutable_step()->set_step(step);
  record.mutable_step()->set_tokens(1'000);
  record.mutable_step()->set_tokens_per_second(speed);
  record.mutable_step()->mutable_times()->set_step_seconds(seconds);
  return record;
}

v1::WorkerRecord EvalAfter(int64_t step, double seconds) {
  v1::WorkerRecord record;
  record.mutable_eval()->set_step(step);
  record.mutable_eval()->set_loss(2);
  record.mutable_eval()->set_seconds(seconds);
  return record;
}

v1::WorkerRecord StartedFrom(int64_t step) {
  v1::WorkerRecord record;
  record.mutable_started()->set_resumed_step(step);
  return record;
}

v1::TrainSpec Training(int64_t steps, int64_t eval_every = 0) {
  v1::TrainSpec train;
  train.set_steps(steps);
  train.set_eval_every(eval_every);
  return train;
}

TEST(Progress, TheRecentLossIsAMeanOfFiniteStepsOfThisStart) {
  v1::JobProgress progress;
  const auto step = [&progress](int64_t number, double loss) {
    v1::WorkerRecord record = StepAt(number, 1'000);
    record.mutable_step()->set_loss(static_cast<float>(loss));
    FoldHealth(record, v1::JobSpec(), &progress);
  };
  step(1, 8);
  step(2, 4);
  EXPECT_EQ(progress.recent_loss(), 6);
  step(3, std::nan(""));
  EXPECT_EQ(progress.recent_loss(), 6);
  for (int64_t number = 4; number <= 400; ++number) step(number, number % 2 == 0 ? 2 : 4);
  EXPECT_NEAR(progress.recent_loss(), 3, 0.05);
  FoldHealth(StartedFrom(200), v1::JobSpec(), &progress);
  step(201, 5);
  EXPECT_EQ(progress.recent_loss(), 5);
}

TEST(Progress, EstimatesTheEndWithinTenPercentAfterAHundredSteps) {
  v1::JobProgress progress;
  for (int step = 1; step <= 100; ++step) {
    // The first steps are slow; later speeds vary by 20 % around their mean.
    const double speed = step <= 3 ? 100 : (step % 2 == 0 ? 12'000 : 8'000);
    Fold(StepAt(step, speed), Training(1'500), 1'100, &progress);
  }
  EXPECT_NEAR(progress.eta_seconds(), 1'000 * 1'000 / 10'000.0, 10);
  EXPECT_EQ(progress.total_steps(), 1'500) << "of the job, not of its stop";
}

TEST(Progress, EstimatesTheValidationsThatAreLeft) {
  const auto eta_at = [](int64_t step, int64_t last_step) {
    v1::JobProgress progress;
    Fold(EvalAfter(10, 7), Training(95, 10), last_step, &progress);
    Fold(StepAt(step, 1'000), Training(95, 10), last_step, &progress);
    return progress.eta_seconds();
  };
  EXPECT_DOUBLE_EQ(eta_at(11, 95), 84 + 9 * 7) << "after 20, 30, … 90, and the last step";
  EXPECT_DOUBLE_EQ(eta_at(20, 95), 75 + 8 * 7) << "that after step 20 runs now";
  EXPECT_DOUBLE_EQ(eta_at(11, 35), 24 + 3 * 7) << "a run that is stopped is validated there";
  EXPECT_DOUBLE_EQ(eta_at(95, 95), 0);
}

TEST(Progress, GoesBackToTheCheckpointAfterARestart) {
  v1::JobProgress progress;
  Fold(StepAt(57, 1'000), Training(100), 100, &progress);
  Fold(StartedFrom(50), Training(100), 100, &progress);
  EXPECT_EQ(progress.step(), 50);
  EXPECT_LT(progress.eta_seconds(), 0);
}

TEST(Progress, CountsWhatIsDoneAgainOnce) {
  v1::JobProgress progress;
  const auto fold = [&](const v1::WorkerRecord& record) {
    Fold(record, Training(100, 2), 100, &progress);
  };
  for (const int64_t step : {1, 2}) fold(StepAt(step, 1'000));
  fold(EvalAfter(2, 3));
  fold(StepAt(3, 1'000));
  EXPECT_DOUBLE_EQ(progress.productive_seconds(), 3 * 0.5 + 3);
  fold(StartedFrom(1));
  for (const int64_t step : {2, 3}) {
    fold(StepAt(step, 1'000, 20));
    fold(EvalAfter(2, 20));
    EXPECT_DOUBLE_EQ(progress.productive_seconds(), 3 * 0.5 + 3) << "at step " << step;
  }
  fold(StepAt(4, 1'000));
  fold(EvalAfter(4, 2));
  EXPECT_DOUBLE_EQ(progress.productive_seconds(), 4 * 0.5 + 5);
}

v1::WorkerRecord StepOf(int64_t step, const std::map<std::string, int64_t>& rows) {
  v1::WorkerRecord record = StepAt(step, 1'000);
  for (const auto& [name, count] : rows) {
    v1::SourceShare* const source = record.mutable_step()->add_sources();
    source->set_name(name);
    source->set_rows(count);
    if (count > 0) source->set_loss(static_cast<double>(step));
    source->set_epoch(step / 10);
  }
  return record;
}

TEST(Progress, CountsTheRowsOfEachSourceOnce) {
  v1::DataSpec data;
  for (const char* name : {"code", "books"}) data.add_mix()->set_name(name);
  v1::JobProgress progress;
  const auto fold = [&](const v1::WorkerRecord& record) {
    FoldData(record, data, &progress);
    Fold(record, Training(100), 100, &progress);
  };
  fold(StepOf(1, {{"books", 5}, {"code", 3}, {"stranger", 9}}));
  fold(StepOf(2, {{"books", 8}, {"code", 0}}));
  ASSERT_EQ(progress.sources_size(), 2) << "a stranger is not remembered";
  const v1::SourceProgress& code = progress.sources(0);
  const v1::SourceProgress& books = progress.sources(1);
  EXPECT_EQ(code.name(), "code");
  EXPECT_EQ(code.rows(), 3);
  EXPECT_EQ(code.loss(), 1) << "of the latest step with a row of it";
  EXPECT_EQ(books.rows(), 13);
  EXPECT_EQ(books.loss(), 2);
  fold(StartedFrom(1));
  fold(StepOf(2, {{"books", 8}, {"code", 0}}));
  EXPECT_EQ(progress.sources(1).rows(), 13) << "step 2 is repeated";
  fold(StepOf(11, {{"books", 4}, {"code", 4}}));
  EXPECT_EQ(progress.sources(0).rows(), 7);
  EXPECT_EQ(progress.sources(0).epoch(), 1);
}

TEST(Progress, AResumeWithOtherSourcesForgetsTheOldOnes) {
  v1::DataSpec data;
  data.add_mix()->set_name("books");
  v1::JobProgress progress;
  FoldData(StepOf(1, {{"books", 5}}), data, &progress);
  data.mutable_mix(0)->set_name("code");
  FoldData(StepOf(2, {{"code", 5}}), data, &progress);
  ASSERT_EQ(progress.sources_size(), 1);
  EXPECT_EQ(progress.sources(0).name(), "code");
  EXPECT_EQ(progress.sources(0).rows(), 5);
  FoldData(StepOf(3, {}), v1::DataSpec(), &progress);
  EXPECT_EQ(progress.sources_size(), 0);
}

TEST(Progress, HasTheLatestLossOfEachNamedSet) {
  v1::DataSpec data;
  (*data.mutable_val())["code"] = "/code.txt";
  v1::JobProgress progress;
  v1::WorkerRecord record = EvalAfter(10, 7);
  for (const char* name : {"code", "code", "stranger"}) {
    v1::NamedLoss* const set = record.mutable_eval()->add_sets();
    set->set_name(name);
    set->set_loss(2.5);
  }
  FoldData(record, data, &progress);
  ASSERT_EQ(progress.val_sets_size(), 1);
  EXPECT_EQ(progress.val_sets(0).name(), "code");
  EXPECT_EQ(progress.val_sets(0).loss(), 2.5);
}

TEST(Progress, AFailedUploadIsNoneAndTheNewestStepStays) {
  v1::JobProgress progress;
  v1::WorkerRecord record;
  record.set_unix_nanos(7);
  record.mutable_upload()->set_step(20);
  Fold(record, Training(100), 100, &progress);
  EXPECT_EQ(progress.uploaded_step(), 20);
  EXPECT_EQ(progress.uploaded_unix_nanos(), 7);
  record.mutable_upload()->set_step(30);
  record.mutable_upload()->set_error("HTTP 503");
  Fold(record, Training(100), 100, &progress);
  EXPECT_EQ(progress.uploaded_step(), 20);
  EXPECT_EQ(progress.upload_error(), "HTTP 503");
  record.mutable_upload()->set_step(10);
  record.mutable_upload()->clear_error();
  Fold(record, Training(100), 100, &progress);
  EXPECT_EQ(progress.uploaded_step(), 20) << "an older one is uploaded after the newest";
  EXPECT_EQ(progress.upload_error(), "");
}

TEST(Progress, AFailedCheckpointIsNone) {
  v1::JobProgress progress;
  v1::WorkerRecord record;
  record.mutable_checkpoint()->set_step(10);
  record.mutable_checkpoint()->set_error("disk full");
  Fold(record, Training(100), 100, &progress);
  EXPECT_EQ(progress.checkpoint_step(), 0);
  EXPECT_EQ(progress.checkpoint_error(), "disk full");
  record.mutable_checkpoint()->clear_error();
  Fold(record, Training(100), 100, &progress);
  EXPECT_EQ(progress.checkpoint_step(), 10);
  EXPECT_EQ(progress.checkpoint_error(), "");
}

}  // namespace
}  // namespace nsa::server
