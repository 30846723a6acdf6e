// What holds a queued job back: other jobs and a time.
#include "server/decide/queue/hold.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "server/decide/allocation/allocation.h"

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using v1::Predecessor;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);  // 2027-01-15T08:00:00Z

v1::StoredJob Waiting(const std::vector<Predecessor::State>& after,
                      absl::Time not_before = absl::UnixEpoch()) {
  v1::StoredJob stored;
  stored.set_queued_unix_nanos(7);
  v1::Job& job = *stored.mutable_job();
  job.set_state(v1::Job::STATE_QUEUED);
  for (size_t i = 0; i < after.size(); ++i) {
    Predecessor& one = *job.add_after();
    one.set_id(absl::StrCat("j", i));
    one.set_name(absl::StrCat("prep-", i));
    one.set_state(after[i]);
  }
  job.set_not_before_unix_nanos(absl::ToUnixNanos(not_before));
  return stored;
}

std::string ReasonOfHold(const v1::StoredJob& stored) {
  const auto hold = HoldOf(stored.job());
  return hold.has_value() ? hold->reason : "";
}

v1::StoredJob Ended(v1::Job::State state, Reason reason) {
  v1::StoredJob stored;
  stored.mutable_job()->set_state(state);
  stored.mutable_job()->set_reason(Word(reason));
  return stored;
}

TEST(Hold, AJobWithoutAnythingToWaitForIsFree) {
  EXPECT_EQ(ReasonOfHold(Waiting({})), "");
  EXPECT_EQ(ReasonOfHold(Waiting({Predecessor::STATE_DONE})), "");
}

TEST(Hold, TheReasonIsTheOneThatSomebodyCanDoSomethingAbout) {
  const absl::Time later = kNow + absl::Hours(1);
  EXPECT_EQ(ReasonOfHold(Waiting({}, later)), "WAITING_FOR_TIME");
  EXPECT_EQ(ReasonOfHold(Waiting({Predecessor::STATE_AWAITED}, later)), "WAITING_FOR_JOBS");
  EXPECT_EQ(ReasonOfHold(Waiting({Predecessor::STATE_AWAITED, Predecessor::STATE_ENDED}, later)),
            "DEPENDENCY_NEVER_SATISFIED");
  EXPECT_EQ(ReasonOfHold(Waiting({Predecessor::STATE_DELETED})), "DEPENDENCY_NEVER_SATISFIED");
}

TEST(Hold, TheTextNamesTheJobsAndTheTime) {
  const auto hold = HoldOf(
      Waiting({Predecessor::STATE_DONE, Predecessor::STATE_AWAITED}, kNow + absl::Hours(1)).job());
  EXPECT_THAT(hold->text, HasSubstr("prep-1 (j1)"));
  EXPECT_THAT(hold->text, Not(HasSubstr("prep-0")));
  EXPECT_THAT(hold->text, HasSubstr("2027-01-15T09:00:00Z"));
  EXPECT_THAT(HoldOf(Waiting({Predecessor::STATE_ENDED}).job())->text,
              HasSubstr("nsactl resume j0"));
}

TEST(FateOf, OnlySucceededIsDone) {
  EXPECT_EQ(FateOf(nullptr), Predecessor::STATE_DELETED);
  const v1::StoredJob succeeded = Ended(v1::Job::STATE_SUCCEEDED, Reason::kCompleted);
  EXPECT_EQ(FateOf(&succeeded), Predecessor::STATE_DONE);
  for (const auto state : {v1::Job::STATE_QUEUED, v1::Job::STATE_RUNNING, v1::Job::STATE_STOPPING,
                           v1::Job::STATE_RESTARTING}) {
    const v1::StoredJob job = Ended(state, Reason::kResumed);
    EXPECT_EQ(FateOf(&job), Predecessor::STATE_AWAITED) << state;
  }
  const v1::StoredJob failed = Ended(v1::Job::STATE_FAILED, Reason::kDiverged);
  EXPECT_EQ(FateOf(&failed), Predecessor::STATE_ENDED);
  const v1::StoredJob stopped = Ended(v1::Job::STATE_STOPPED, Reason::kStoppedAtStep);
  EXPECT_EQ(FateOf(&stopped), Predecessor::STATE_ENDED);
}

TEST(FateOf, AJobThatItsSweepHasPausedHasNotEnded) {
  v1::StoredJob job = Ended(v1::Job::STATE_STOPPED, Reason::kStoppedAtStep);
  job.mutable_job()->mutable_spec()->mutable_sweep()->add_halve_at(100);
  job.mutable_job()->mutable_stop()->set_mode(v1::STOP_MODE_AT_STEP);
  job.mutable_job()->mutable_stop()->set_at_step(100);
  EXPECT_EQ(FateOf(&job), Predecessor::STATE_AWAITED);
  job.mutable_job()->set_reason(Word(Reason::kStoppedByUser));
  EXPECT_EQ(FateOf(&job), Predecessor::STATE_ENDED);
  job.mutable_job()->set_reason(Word(Reason::kStoppedAtStep));
  job.set_sweep_dropped(true);
  EXPECT_EQ(FateOf(&job), Predecessor::STATE_ENDED);
}

// "REASON SEVERITY" of the events.
std::vector<std::string> Note(const std::vector<Predecessor::State>& fates, absl::Time now,
                              v1::StoredJob* stored) {
  if (!IsNews(fates, now, stored->job())) return {};
  std::vector<v1::JobEvent> events;
  NoteFates(fates, now, stored, &events);
  std::vector<std::string> words;
  for (const v1::JobEvent& event : events) {
    words.push_back(absl::StrCat(event.reason(), " ", v1::Severity_Name(event.severity())));
    EXPECT_EQ(event.rank(), -1);
  }
  return words;
}

TEST(NoteFates, TheLastJobThatIsDoneReleasesIt) {
  v1::StoredJob job = Waiting({Predecessor::STATE_AWAITED, Predecessor::STATE_AWAITED});
  const auto awaited = Predecessor::STATE_AWAITED;
  const auto done = Predecessor::STATE_DONE;
  EXPECT_FALSE(IsNews({awaited, awaited}, kNow, job.job()));
  EXPECT_THAT(Note({done, awaited}, kNow, &job), IsEmpty());
  EXPECT_EQ(job.job().after(0).state(), done);
  EXPECT_EQ(job.queued_unix_nanos(), 7);
  EXPECT_THAT(Note({awaited, done}, kNow, &job), ElementsAre("RELEASED SEVERITY_INFO"))
      << "what was done stays done, whatever becomes of that job";
  EXPECT_EQ(job.job().after(0).state(), done);
  EXPECT_EQ(job.queued_unix_nanos(), absl::ToUnixNanos(kNow)) << "its place is behind those before";
}

TEST(NoteFates, AJobThatEndsIsSaidOnceAndMayComeBack) {
  v1::StoredJob job = Waiting({Predecessor::STATE_AWAITED});
  const std::vector<Predecessor::State> ended = {Predecessor::STATE_ENDED};
  EXPECT_THAT(Note(ended, kNow, &job), ElementsAre("DEPENDENCY_NEVER_SATISFIED SEVERITY_WARNING"));
  EXPECT_FALSE(IsNews(ended, kNow, job.job()));
  EXPECT_THAT(Note({Predecessor::STATE_AWAITED}, kNow, &job),
              ElementsAre("WAITING_FOR_JOBS SEVERITY_INFO"));
  EXPECT_THAT(Note({Predecessor::STATE_DELETED}, kNow, &job),
              ElementsAre("DEPENDENCY_NEVER_SATISFIED SEVERITY_WARNING"));
}

TEST(NoteFates, ItsTimeComesOnceAlsoWhenTheClockGoesBack) {
  v1::StoredJob job = Waiting({}, kNow);
  EXPECT_FALSE(IsNews({}, kNow - absl::Nanoseconds(1), job.job()));
  EXPECT_THAT(Note({}, kNow, &job), ElementsAre("RELEASED SEVERITY_INFO"));
  EXPECT_FALSE(IsNews({}, kNow - absl::Hours(1), job.job()));
  EXPECT_EQ(ReasonOfHold(job), "");
}

TEST(NoteFates, BothHaveToCome) {
  v1::StoredJob job = Waiting({Predecessor::STATE_AWAITED}, kNow);
  EXPECT_THAT(Note({Predecessor::STATE_AWAITED}, kNow, &job), IsEmpty());
  EXPECT_EQ(ReasonOfHold(job), "WAITING_FOR_JOBS");
  EXPECT_THAT(Note({Predecessor::STATE_DONE}, kNow, &job), ElementsAre("RELEASED SEVERITY_INFO"));
}

TEST(Hold, AHeldJobWantsNoMachinesOfAClusterManager) {
  v1::StoredJob job = Waiting({Predecessor::STATE_AWAITED});
  job.mutable_job()->mutable_spec()->mutable_resources()->set_provisioner("slurm");
  EXPECT_FALSE(WantsAllocation(job, kNow));
  job.mutable_job()->mutable_after(0)->set_state(Predecessor::STATE_DONE);
  EXPECT_TRUE(WantsAllocation(job, kNow));
}

}  // namespace
}  // namespace nsa::server
