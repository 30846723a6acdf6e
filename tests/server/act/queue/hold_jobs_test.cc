// Jobs that wait for others and for a time, and their alerts, with fake agents and a fake clock.
#include "server/act/queue/hold_jobs.h"

#include <optional>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/act/request_error.h"
#include "tests/server/act/harness.h"

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using v1::Job;
using v1::Predecessor;

class HeldJobs : public Harness {
 protected:
  v1::JobSpec After(const std::string& name, const std::string& awaited) {
    v1::JobSpec spec = Spec(name);
    spec.add_after(awaited);
    return spec;
  }
  v1::JobSpec NotBefore(const std::string& name, const std::string& when) {
    v1::JobSpec spec = Spec(name);
    spec.set_not_before(when);
    return spec;
  }
  absl::Status Refusal(const v1::JobSpec& spec) {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec;
    return control().Submit(request).status();
  }
  void Finish(const std::string& id, FakeAgent* agent) {
    RunUntil(id, Job::STATE_RUNNING, {agent});
    agent->Train(100);
    RunUntil(id, Job::STATE_SUCCEEDED, {agent});
  }
};

TEST_F(HeldJobs, AChainRunsOneAfterTheOther) {
  FakeAgent agent = MakeAgent("a", 2);
  const std::string prep = Submit(Spec("prep"));
  const std::string train = Submit(After("train", "prep"));
  RunUntil(prep, Job::STATE_RUNNING, {&agent});
  for (int i = 0; i < 5; ++i) Round({&agent});
  const Job held = Get(train);
  EXPECT_EQ(held.state(), Job::STATE_QUEUED) << "a slot is free";
  EXPECT_EQ(held.reason(), "WAITING_FOR_JOBS");
  EXPECT_THAT(held.message(), HasSubstr(prep));
  EXPECT_EQ(held.queue_position(), 0);
  ASSERT_EQ(held.after_size(), 1);
  EXPECT_EQ(held.after(0).id(), prep);
  EXPECT_THAT(held.spec().after(), ElementsAre("prep")) << "as it was written";

  agent.Train(100);
  RunUntil(prep, Job::STATE_SUCCEEDED, {&agent});
  RunUntil(train, Job::STATE_RUNNING, {&agent});
  EXPECT_EQ(History(train), "SUBMITTED RELEASED PLACED LAUNCHED ALL_RANKS_UP");
  const auto& worker = agent.workers().at({train, 1, 0});
  EXPECT_THAT(worker.assignment.spec().after(), IsEmpty())
      << "a worker of an earlier version would refuse it";
}

TEST_F(HeldJobs, NobodyWaitsBehindAHeldJob) {
  FakeAgent agent = MakeAgent("a", 1);
  const std::string prep = Submit(Spec("prep"));
  RunUntil(prep, Job::STATE_RUNNING, {&agent});
  v1::JobSpec important = After("important", "prep");
  important.set_priority(100);
  const std::string held = Submit(important);
  const std::string other = Submit(Spec("other"));
  Round({&agent});
  EXPECT_EQ(Get(other).reason(), "WAITING_FOR_SLOTS");
  EXPECT_EQ(Get(other).queue_position(), 1);
  agent.Train(100);
  RunUntil(prep, Job::STATE_SUCCEEDED, {&agent});
  RunUntil(held, Job::STATE_RUNNING, {&agent});
  EXPECT_EQ(Get(other).state(), Job::STATE_QUEUED) << "the other one has the higher priority";
}

TEST_F(HeldJobs, AJobThatFailsIsSaidAndAResumeBringsItBack) {
  FakeAgent agent = MakeAgent("a", 1);
  const std::string prep = Submit(Spec("prep"));
  const std::string train = Submit(After("train", prep));
  RunUntil(prep, Job::STATE_RUNNING, {&agent});
  agent.Train(3);
  ASSERT_OK(Stop(prep, v1::STOP_MODE_NOW));
  RunUntil(prep, Job::STATE_STOPPED, {&agent});
  Round({&agent});
  EXPECT_EQ(Get(train).reason(), "DEPENDENCY_NEVER_SATISFIED");
  EXPECT_EQ(Get(train).after(0).state(), Predecessor::STATE_ENDED);
  ASSERT_EQ(Get(train).problems_size(), 1);
  EXPECT_EQ(Get(train).problems(0).word(), "DEPENDENCY_NEVER_SATISFIED");
  EXPECT_EQ(Get(train).problems(0).level(), v1::JobHealth::LEVEL_WARNING);

  Restart();
  ASSERT_OK(Resume(prep));
  Finish(prep, &agent);
  RunUntil(train, Job::STATE_RUNNING, {&agent});
  EXPECT_EQ(History(train),
            "SUBMITTED DEPENDENCY_NEVER_SATISFIED WAITING_FOR_JOBS RELEASED PLACED LAUNCHED "
            "ALL_RANKS_UP");
}

TEST_F(HeldJobs, ADeletedJobIsNeverDoneUnlessItWas) {
  FakeAgent agent = MakeAgent("a", 1);
  const std::string done = Submit(Spec("done"));
  Finish(done, &agent);
  const std::string lost = Submit(NotBefore("lost", "+1h"));
  v1::JobSpec spec = After("train", "done");
  spec.add_after("lost");
  const std::string train = Submit(spec);
  ASSERT_OK(Stop(lost, v1::STOP_MODE_NOW));
  for (const std::string& id : {done, lost}) {
    v1::DeleteJobRequest request;
    request.set_job(id);
    ASSERT_OK(control().Delete(request, "a test").status());
  }
  Round({&agent});
  EXPECT_EQ(Get(train).after(0).state(), Predecessor::STATE_DONE);
  EXPECT_EQ(Get(train).after(1).state(), Predecessor::STATE_DELETED);
  EXPECT_EQ(Get(train).reason(), "DEPENDENCY_NEVER_SATISFIED");

  // The way out.
  ASSERT_OK(Stop(train, v1::STOP_MODE_NOW));
  v1::JobSpec alone = Get(train).spec();
  alone.clear_after();
  ASSERT_OK(Resume(train, "", alone));
  EXPECT_THAT(Get(train).after(), IsEmpty());
  RunUntil(train, Job::STATE_RUNNING, {&agent});
}

TEST_F(HeldJobs, JobsThatCannotBeWaitedForAreRefused) {
  FakeAgent agent = MakeAgent("a", 1);
  const std::string prep = Submit(Spec("prep"));
  ASSERT_OK(Stop(prep, v1::STOP_MODE_NOW));
  v1::JobSpec twice = After("train", Submit(Spec("twin")));
  twice.add_after("twin");
  for (const v1::JobSpec& spec :
       {After("train", "unknown"), After("train", "prep"), After("train", "train"), twice}) {
    const absl::Status status = Refusal(spec);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_TRUE(status.GetPayload(kViolationsUrl).has_value()) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("after[")) << status;
  }
}

TEST_F(HeldJobs, AResumeThatWouldCloseACircleIsRefused) {
  const std::string first = Submit(Spec("first"));
  const std::string second = Submit(After("second", "first"));
  Submit(After("third", second));
  ASSERT_OK(Stop(first, v1::STOP_MODE_NOW));
  for (const char* awaited : {"third", "second", "first"}) {
    v1::JobSpec spec = Get(first).spec();
    spec.add_after(awaited);
    EXPECT_TRUE(absl::IsInvalidArgument(Resume(first, "", spec))) << awaited;
  }
  EXPECT_EQ(Get(first).state(), Job::STATE_STOPPED);
}

TEST_F(HeldJobs, NobodyWaitsForAJobThatDoesNotExistForHim) {
  v1::SubmitJobRequest request;
  *request.mutable_spec() = Spec("prep");
  ASSERT_OK(control().Submit(request, nullptr, {.name = "bob"}).status());
  *request.mutable_spec() = After("train", "prep");
  const absl::Status refused =
      control().Submit(request, nullptr, {.name = "ada", .own_jobs_only = true}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_OK(control().Submit(request, nullptr, {.name = "ada"}).status());
}

TEST_F(HeldJobs, AJobStartsNoEarlierThanItsTime) {
  FakeAgent agent = MakeAgent("a", 1);
  const std::string id = Submit(NotBefore("late", "+10m"));
  const absl::Time start = clock().Wall() + absl::Minutes(10);
  Round({&agent});
  EXPECT_EQ(Get(id).reason(), "WAITING_FOR_TIME");
  EXPECT_EQ(Get(id).not_before_unix_nanos(), absl::ToUnixNanos(start));
  const std::string other = Submit(Spec("other"));
  Finish(other, &agent);
  Restart();
  clock().Advance(start - clock().Wall() - absl::Seconds(1));
  Round({&agent});
  EXPECT_EQ(Get(id).state(), Job::STATE_QUEUED);
  clock().Advance(absl::Seconds(1));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  EXPECT_EQ(Get(id).not_before_unix_nanos(), 0);
  EXPECT_EQ(History(id), "SUBMITTED RELEASED PLACED LAUNCHED ALL_RANKS_UP");
}

TEST_F(HeldJobs, ATimeThatIsOverHoldsNobody) {
  FakeAgent agent = MakeAgent("a", 1);
  const std::string id = Submit(NotBefore("late", "2026-01-01T00:00:00Z"));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  EXPECT_EQ(History(id), "SUBMITTED PLACED LAUNCHED ALL_RANKS_UP");
  EXPECT_TRUE(absl::IsInvalidArgument(Refusal(NotBefore("never", "2099-01-01T00:00:00Z"))));
}

// The clock is set while the job waits: a duration stays one, a time of day is one of the clock.
TEST_F(HeldJobs, AClockThatIsSetChangesTimesOfDayOnly) {
  FakeAgent agent = MakeAgent("a", 2);
  const std::string in_an_hour = Submit(NotBefore("in-an-hour", "+1h"));
  const std::string at_nine = Submit(NotBefore("at-nine", "2027-01-15T09:00:00Z"));
  Round({&agent});
  clock().JumpWall(absl::Hours(5));
  RunUntil(at_nine, Job::STATE_RUNNING, {&agent});
  EXPECT_EQ(Get(in_an_hour).reason(), "WAITING_FOR_TIME");
  clock().JumpWall(absl::Hours(-7));
  Pass(absl::Minutes(59));
  EXPECT_EQ(Get(in_an_hour).reason(), "WAITING_FOR_TIME");
  Pass(absl::Minutes(2));
  EXPECT_THAT(History(in_an_hour), HasSubstr("RELEASED"));
}

TEST_F(HeldJobs, AResumeDoesNotWaitAgain) {
  FakeAgent agent = MakeAgent("a", 1);
  const std::string prep = Submit(Spec("prep"));
  v1::JobSpec spec = After("train", "prep");
  spec.set_not_before("+1m");
  const std::string train = Submit(spec);
  Finish(prep, &agent);
  clock().Advance(absl::Minutes(1));
  RunUntil(train, Job::STATE_RUNNING, {&agent});
  ASSERT_OK(Stop(train, v1::STOP_MODE_NOW));
  RunUntil(train, Job::STATE_STOPPED, {&agent});
  ASSERT_OK(Resume(train));
  RunUntil(train, Job::STATE_RUNNING, {&agent});
  ASSERT_OK(Stop(train, v1::STOP_MODE_NOW));
  RunUntil(train, Job::STATE_STOPPED, {&agent});
  v1::JobSpec later = Get(train).spec();
  later.set_not_before("+2m");
  ASSERT_OK(Resume(train, "", later));
  Round({&agent});
  EXPECT_EQ(Get(train).reason(), "WAITING_FOR_TIME") << "a new time counts from the resume";
}

TEST_F(HeldJobs, AnAlertIsAProblemAndSurvivesARestart) {
  FakeAgent agent = MakeAgent("a", 1);
  v1::JobSpec spec = Spec("watched");
  spec.add_alerts()->set_when("loss > 4 for 2 steps");
  v1::AlertSpec& good = *spec.add_alerts();
  good.set_when("loss < 1");
  good.add_notify("slack");
  const std::string id = Submit(spec);
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  EXPECT_THAT(agent.Find(0)->assignment.spec().alerts(), IsEmpty());
  agent.Train(5);  // losses 5, 2.5, …, 1
  Round({&agent});
  EXPECT_THAT(Get(id).problems(), IsEmpty());
  agent.Train(1);
  Round({&agent});
  ASSERT_EQ(Get(id).problems_size(), 1);
  EXPECT_EQ(Get(id).problems(0).word(), "ALERT_2");
  EXPECT_EQ(Get(id).problems(0).level(), v1::JobHealth::LEVEL_WARNING);
  EXPECT_EQ(Get(id).problems(0).since_step(), 6);
  Restart();
  agent.Train(3);
  Round({&agent});
  EXPECT_THAT(History(id), HasSubstr("ALERT_RAISED"));
  EXPECT_EQ(History(id).find("ALERT_RAISED"), History(id).rfind("ALERT_RAISED")) << "once";
  EXPECT_TRUE(Get(id).progress().alerts(1).raised());
  agent.Train(100);
  RunUntil(id, Job::STATE_SUCCEEDED, {&agent});
  EXPECT_EQ(Get(id).problems(0).level(), v1::JobHealth::LEVEL_HEALTHY) << "a note";
}

TEST_F(HeldJobs, AnAlertForAnUnknownNoticeIsRefused) {
  v1::JobSpec spec = Spec("watched");
  spec.add_alerts()->set_when("loss > 4");
  spec.mutable_alerts(0)->add_notify("pager");
  EXPECT_TRUE(absl::IsInvalidArgument(Refusal(spec)));
  spec.mutable_alerts(0)->clear_notify();
  spec.mutable_alerts(0)->set_when("loss is high");
  EXPECT_TRUE(absl::IsInvalidArgument(Refusal(spec)));
}

}  // namespace
}  // namespace nsa::server
