// When alerts of a job are raised and cleared.
#include "server/decide/alert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/record/alert.h"

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A job with alerts, whose steps take two seconds each.
class Watched {
 public:
  explicit Watched(const std::vector<std::string>& alerts) {
    for (const std::string& when : alerts) spec_.add_alerts()->set_when(when);
  }

  // "ALERT_RAISED ALERT_1" of the events of a step with this loss.
  std::vector<std::string> Step(double loss) {
    v1::WorkerRecord record;
    record.mutable_step()->set_step(++step_);
    record.mutable_step()->set_loss(loss);
    record.mutable_step()->mutable_times()->set_step_seconds(2);
    return Take(record);
  }
  std::vector<std::string> Steps(int count, double loss) {
    std::vector<std::string> all;
    for (int i = 0; i < count; ++i) {
      for (const std::string& one : Step(loss)) all.push_back(one);
    }
    return all;
  }
  std::vector<std::string> Validate(double loss) {
    v1::WorkerRecord record;
    record.mutable_eval()->set_step(step_);
    record.mutable_eval()->set_loss(loss);
    record.mutable_eval()->set_seconds(1);
    return Take(record);
  }
  std::vector<std::string> Take(v1::WorkerRecord record) {
    record.set_unix_nanos(1'000 + step_);
    last_ = FoldAlerts(record, {}, spec_, &progress_);
    std::vector<std::string> words;
    for (const v1::JobEvent& event : last_) {
      words.push_back(absl::StrCat(event.reason(), " ", event.problem()));
    }
    return words;
  }

  v1::JobSpec& spec() { return spec_; }
  v1::JobProgress& progress() { return progress_; }
  const v1::AlertProgress& alert(int index = 0) { return progress_.alerts(index); }
  const std::vector<v1::JobEvent>& last() { return last_; }
  void Rewind(int64_t step) { step_ = step; }

 private:
  v1::JobSpec spec_;
  v1::JobProgress progress_;
  std::vector<v1::JobEvent> last_;
  int64_t step_ = 0;
};

TEST(Alert, WithoutForOneValueIsEnough) {
  Watched job({"loss > 3"});
  EXPECT_THAT(job.Step(3), IsEmpty());
  EXPECT_THAT(job.Step(4), ElementsAre("ALERT_RAISED ALERT_1"));
  EXPECT_EQ(job.last()[0].severity(), v1::SEVERITY_WARNING);
  EXPECT_EQ(job.last()[0].rank(), -1);
  EXPECT_TRUE(job.alert().raised());
  EXPECT_EQ(job.alert().value(), 4);
  EXPECT_EQ(job.alert().since_step(), 2);
  EXPECT_EQ(job.alert().since_unix_nanos(), 1'002);
  EXPECT_THAT(job.Steps(50, 5), IsEmpty()) << "raised once";
  EXPECT_THAT(job.Step(2), ElementsAre("ALERT_CLEARED ALERT_1"));
  EXPECT_EQ(job.last()[0].severity(), v1::SEVERITY_INFO);
  EXPECT_FALSE(job.alert().raised());
  EXPECT_EQ(job.alert().since_step(), 53);
  EXPECT_THAT(job.Steps(50, 2), IsEmpty()) << "cleared once";
}

TEST(Alert, HoldsForATimeOfTraining) {
  Watched job({"loss > 3 for 10s"});
  EXPECT_THAT(job.Steps(5, 4), IsEmpty()) << "8 s since the first of these values";
  EXPECT_THAT(job.Step(2), IsEmpty());
  EXPECT_THAT(job.Steps(5, 4), IsEmpty()) << "counted anew";
  EXPECT_THAT(job.Step(4), ElementsAre("ALERT_RAISED ALERT_1"));
  EXPECT_THAT(job.Steps(5, 2), IsEmpty()) << "it ends as slowly as it began";
  EXPECT_THAT(job.Step(4), IsEmpty());
  EXPECT_THAT(job.Steps(5, 2), IsEmpty());
  EXPECT_THAT(job.Step(2), ElementsAre("ALERT_CLEARED ALERT_1"));
}

TEST(Alert, HoldsForANumberOfSteps) {
  Watched job({"loss > 3 for 3 steps"});
  EXPECT_THAT(job.Steps(2, 4), IsEmpty());
  EXPECT_THAT(job.Step(4), ElementsAre("ALERT_RAISED ALERT_1"));
  EXPECT_THAT(job.Steps(2, 2), IsEmpty());
  EXPECT_THAT(job.Step(2), ElementsAre("ALERT_CLEARED ALERT_1"));
}

TEST(Alert, AValueStaysUntilTheNextOne) {
  Watched job({"val_loss > 3 for 10s"});
  EXPECT_THAT(job.Steps(10, 9), IsEmpty()) << "no validation yet";
  EXPECT_FALSE(job.alert().has_value());
  EXPECT_THAT(job.Validate(4), IsEmpty());
  EXPECT_THAT(job.Steps(4, 1), IsEmpty());
  EXPECT_THAT(job.Step(1), ElementsAre("ALERT_RAISED ALERT_1")) << "10 s of steps since then";
  EXPECT_THAT(job.Validate(2), IsEmpty());
  EXPECT_THAT(job.Steps(5, 9), ElementsAre("ALERT_CLEARED ALERT_1"));
}

TEST(Alert, NanRaisesALimitFromAboveAndClearsOneFromBelow) {
  Watched job({"loss > 3", "loss < 2"});
  EXPECT_THAT(job.Step(1), ElementsAre("ALERT_RAISED ALERT_2"));
  EXPECT_THAT(job.Step(kNan), ElementsAre("ALERT_RAISED ALERT_1", "ALERT_CLEARED ALERT_2"));
  EXPECT_THAT(job.Step(2.5), ElementsAre("ALERT_CLEARED ALERT_1"));
}

TEST(Alert, ANoisyQuantityRaisesItOnceAMinute) {
  Watched job({"loss > 3"});
  int raised = 0;
  for (int i = 0; i < 300; ++i) {  // 600 s
    for (const std::string& one : job.Step(i % 2 == 0 ? 4 : 2)) {
      raised += one == "ALERT_RAISED ALERT_1" ? 1 : 0;
    }
  }
  EXPECT_EQ(raised, 10);
}

TEST(Alert, AStartAgainGoesOnWhereItWas) {
  Watched job({"loss > 3 for 5 steps"});
  EXPECT_THAT(job.Steps(4, 4), IsEmpty());
  v1::WorkerRecord started;
  started.mutable_started()->set_resumed_step(2);
  EXPECT_THAT(job.Take(started), IsEmpty());
  job.Rewind(2);
  EXPECT_THAT(job.Step(4), ElementsAre("ALERT_RAISED ALERT_1"));
  EXPECT_EQ(job.alert().since_step(), 3);
}

TEST(Alert, WhatIsKnownStaysWithItsText) {
  Watched job({"loss > 3", "loss > 5"});
  job.Step(4);
  job.spec().mutable_alerts()->SwapElements(0, 1);
  job.spec().add_alerts()->set_when("loss > 9");
  EXPECT_THAT(job.Step(4), IsEmpty());
  ASSERT_EQ(job.progress().alerts_size(), 3);
  EXPECT_FALSE(job.alert(0).raised());
  EXPECT_TRUE(job.alert(1).raised());
  job.spec().clear_alerts();
  job.Step(4);
  EXPECT_THAT(job.progress().alerts(), IsEmpty());
}

TEST(Alert, AConditionThatThisVersionDoesNotKnowIsNeverMet) {
  Watched job({"loss of_a_newer_kind 3", "loss > 3"});
  EXPECT_THAT(job.Step(4), ElementsAre("ALERT_RAISED ALERT_2"));
}

TEST(Alert, AStepWithoutAUsableTimeCountsAsNone) {
  Watched job({"loss > 3 for 1s"});
  v1::WorkerRecord record;
  record.mutable_step()->set_loss(4);
  record.mutable_step()->mutable_times()->set_step_seconds(kNan);
  EXPECT_THAT(job.Take(record), IsEmpty());
  EXPECT_THAT(job.Take(record), IsEmpty());
  EXPECT_THAT(job.Step(4), ElementsAre("ALERT_RAISED ALERT_1"));
}

TEST(Alert, EachIsAProblemOfItsOwn) {
  for (int i = 0; i < record::kMostAlerts; ++i) EXPECT_EQ(AlertIndex(AlertWord(i)), i);
  for (const char* word :
       {"ALERT_0", "ALERT_9", "ALERT_", "ALERT_RAISED", "ALERT_1x", "LERT_1", ""}) {
    EXPECT_EQ(AlertIndex(word), -1) << word;
  }
}

}  // namespace
}  // namespace nsa::server
