// Preemption and fair shares through the reconciler, with fake agents and a fake clock.
#include "gmock/gmock.h"
#include "tests/server/act/harness.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using v1::Job;

class PreemptionTest : public Harness {
 protected:
  PreemptionTest() {
    scheduling_ = {.preempt = true, .preempt_after = absl::Minutes(10)};
    Restart();
  }

  v1::JobSpec Of(const std::string& name, int32_t priority, int ranks = 1) {
    v1::JobSpec spec = Spec(name, ranks);
    spec.set_priority(priority);
    spec.mutable_train()->set_steps(500);
    return spec;
  }
  // A job that has run for longer than preempt_after.
  std::string Established(const v1::JobSpec& spec, std::initializer_list<FakeAgent*> agents) {
    const std::string id = Submit(spec);
    RunUntil(id, Job::STATE_RUNNING, agents);
    GrowOld(agents);
    return id;
  }
  // Eleven minutes pass, in which the ranks make progress.
  void GrowOld(std::initializer_list<FakeAgent*> agents) {
    for (int second = 0; second < 660; second += 20) {
      clock().Advance(absl::Seconds(20));
      for (FakeAgent* agent : agents) {
        agent->Train(1);
        EXPECT_OK(agent->Beat());
      }
      Look();
    }
  }
  void Rounds(int count, std::initializer_list<FakeAgent*> agents) {
    for (int i = 0; i < count; ++i) Round(agents);
  }
  std::string StateOf(const std::string& id) { return StateName(Get(id).state()); }
};

TEST_F(PreemptionTest, AJobOfLowerPriorityGivesWayAndComesBack) {
  FakeAgent a = MakeAgent("a", 1);
  const std::string low = Established(Of("low", 0), {&a});
  a.Checkpoint();
  Round({&a});
  clock().Advance(absl::Seconds(1));
  const std::string urgent = Submit(Of("urgent", 10));
  const std::string later = Submit(Of("later", 0));
  a.obeys_graceful_stops = false;
  Rounds(3, {&a});
  EXPECT_EQ(StateOf(low), "RESTARTING");
  EXPECT_EQ(Get(low).reason(), "GIVING_WAY");
  EXPECT_THAT(Get(low).message(), AllOf(HasSubstr("job urgent (" + urgent + "), priority 10"),
                                        HasSubstr("this job's priority is 0")));
  EXPECT_THAT(Get(urgent).message(), HasSubstr("1 job gives way to it"));
  EXPECT_EQ((*store().Find(low))->preempted_by(), urgent);
  a.obeys_graceful_stops = true;
  RunUntil(urgent, Job::STATE_RUNNING, {&a});
  EXPECT_EQ(StateOf(low), "QUEUED");
  EXPECT_EQ(Get(low).reason(), "PREEMPTED");
  EXPECT_THAT(Get(low).message(), AllOf(HasSubstr("gave way to job urgent"),
                                        HasSubstr("needs 1 CPU slot, 0 are free")));
  EXPECT_EQ(Get(low).queue_position(), 1) << "its place by the time of its submit";
  EXPECT_EQ(Get(later).queue_position(), 2);
  EXPECT_THAT(History(low), HasSubstr("ALL_RANKS_UP GIVING_WAY PREEMPTED"));
  EXPECT_THAT(History(urgent), HasSubstr("SUBMITTED PREEMPTING PLACED LAUNCHED ALL_RANKS_UP"));
  EXPECT_THAT(life().metrics.Text(),
              AllOf(HasSubstr("nsa_preemptions_total 1"),
                    HasSubstr(absl::StrCat("nsa_job_restarts_total{job_id=\"", low, "\"} 0"))));

  ASSERT_OK(Stop(urgent, v1::STOP_MODE_GRACEFUL));
  RunUntil(low, Job::STATE_RUNNING, {&a});
  EXPECT_EQ(Get(low).restarts(), 0);
  EXPECT_GT(a.Find(0)->assignment.resume_from_step(), 0);
  EXPECT_EQ((*store().Find(low))->preempted_by(), "");
  EXPECT_EQ(StateOf(later), "QUEUED");
}

TEST_F(PreemptionTest, NotBeforeItHasRunForAWhile) {
  FakeAgent a = MakeAgent("a", 1);
  const std::string low = Submit(Of("low", 0));
  RunUntil(low, Job::STATE_RUNNING, {&a});
  const std::string urgent = Submit(Of("urgent", 10));
  Rounds(20, {&a});
  EXPECT_EQ(StateOf(low), "RUNNING");
  EXPECT_THAT(Get(urgent).message(), Not(HasSubstr("gives way")));
  GrowOld({&a});
  RunUntil(urgent, Job::STATE_RUNNING, {&a});
}

TEST_F(PreemptionTest, NotWithoutTheConfigurationNorAJobThatSavesNothing) {
  scheduling_.preempt = false;
  Restart();
  FakeAgent a = MakeAgent("a", 1);
  v1::JobSpec spec = Of("low", 0);
  spec.mutable_train()->set_save_every(0);
  const std::string low = Established(spec, {&a});
  const std::string urgent = Submit(Of("urgent", 10));
  Rounds(5, {&a});
  EXPECT_EQ(StateOf(low), "RUNNING");
  scheduling_.preempt = true;
  Restart();
  Rounds(10, {&a});
  EXPECT_EQ(StateOf(low), "RUNNING");
  EXPECT_EQ(StateOf(urgent), "QUEUED");
}

TEST_F(PreemptionTest, ARestartAtAnyMomentFinishesIt) {
  for (int moment = 0; moment < 12; ++moment) {
    FakeAgent a = MakeAgent("a", 2);
    const std::string low = Established(Of(absl::StrCat("low", moment), 0, 2), {&a});
    const std::string urgent = Submit(Of(absl::StrCat("urgent", moment), 10, 2));
    const std::string small = Submit(Of(absl::StrCat("small", moment), 5));
    for (int i = 0; i < moment; ++i) {
      clock().Advance(absl::Milliseconds(250));
      if (i % 2 == 0) {
        ASSERT_OK(a.Beat());
      }
      Look();
    }
    Restart();
    RunUntil(urgent, Job::STATE_RUNNING, {&a});
    EXPECT_EQ(StateOf(low), "QUEUED") << moment;
    EXPECT_EQ(StateOf(small), "QUEUED") << moment;
    EXPECT_EQ(Get(low).restarts(), 0) << moment;
    for (const std::string& id : {small, urgent}) ASSERT_OK(Stop(id, v1::STOP_MODE_GRACEFUL));
    RunUntil(low, Job::STATE_RUNNING, {&a});
    ASSERT_OK(Stop(low, v1::STOP_MODE_GRACEFUL));
    RunUntil(low, Job::STATE_STOPPED, {&a});
  }
}

TEST_F(PreemptionTest, NothingIsStuckIfTheWaitingJobIsStopped) {
  FakeAgent a = MakeAgent("a", 1);
  const std::string low = Established(Of("low", 0), {&a});
  a.obeys_graceful_stops = false;
  const std::string urgent = Submit(Of("urgent", 10));
  Rounds(3, {&a});
  EXPECT_EQ(Get(low).reason(), "GIVING_WAY");
  ASSERT_OK(Stop(urgent, v1::STOP_MODE_NOW));
  v1::DeleteJobRequest request;
  request.set_job(urgent);
  ASSERT_OK(control().Delete(request, "here").status());
  Restart();
  a.obeys_graceful_stops = true;
  Rounds(3, {&a});
  EXPECT_THAT(History(low), HasSubstr("GIVING_WAY PREEMPTED"));
  RunUntil(low, Job::STATE_RUNNING, {&a});
  EXPECT_EQ((*store().Find(low))->preempted_by(), "");
}

TEST_F(PreemptionTest, TheWaitingJobMayStartElsewhereMeanwhile) {
  FakeAgent a = MakeAgent("a", 1);
  const std::string low = Established(Of("low", 0), {&a});
  a.obeys_graceful_stops = false;
  const std::string urgent = Submit(Of("urgent", 10));
  Rounds(3, {&a});
  FakeAgent b = MakeAgent("b", 1);
  RunUntil(urgent, Job::STATE_RUNNING, {&a, &b});
  a.obeys_graceful_stops = true;
  Rounds(4, {&a, &b});
  RunUntil(low, Job::STATE_RUNNING, {&a, &b});
}

TEST_F(PreemptionTest, AJobThatCrashesMeanwhileGivesItsSlotsUpAllTheSame) {
  FakeAgent a = MakeAgent("a", 1);
  v1::JobSpec spec = Of("low", 0);
  spec.mutable_restart()->set_backoff_seconds(100);
  const std::string low = Established(spec, {&a});
  a.obeys_graceful_stops = false;
  const std::string urgent = Submit(Of("urgent", 10));
  Rounds(3, {&a});
  a.Crash(0, 11);
  RunUntil(urgent, Job::STATE_RUNNING, {&a});
  EXPECT_EQ(StateOf(low), "QUEUED");
  EXPECT_EQ(Get(low).reason(), "PREEMPTED");
  EXPECT_EQ(Get(low).restarts(), 1) << "the crash";
}

TEST_F(PreemptionTest, AJobThatWaitsForItsRestartGivesItsSlotsUpAtOnce) {
  FakeAgent a = MakeAgent("a", 1);
  v1::JobSpec spec = Of("low", 0);
  spec.mutable_restart()->set_backoff_seconds(100);
  const std::string low = Submit(spec);
  RunUntil(low, Job::STATE_RUNNING, {&a});
  a.Crash(0, 11);
  RunUntil(low, Job::STATE_RESTARTING, {&a});
  Rounds(2, {&a});
  const std::string urgent = Submit(Of("urgent", 10));
  RunUntil(urgent, Job::STATE_RUNNING, {&a});
  EXPECT_EQ(Get(low).reason(), "PREEMPTED");
}

TEST_F(PreemptionTest, AUserMayStopTheJobThatGivesWay) {
  FakeAgent a = MakeAgent("a", 1);
  const std::string low = Established(Of("low", 0), {&a});
  a.obeys_graceful_stops = false;
  const std::string urgent = Submit(Of("urgent", 10));
  Rounds(3, {&a});
  ASSERT_OK(Stop(low, v1::STOP_MODE_GRACEFUL));
  a.obeys_graceful_stops = true;
  RunUntil(low, Job::STATE_STOPPED, {&a});
  RunUntil(urgent, Job::STATE_RUNNING, {&a});
  EXPECT_EQ((*store().Find(low))->preempted_by(), "");
}

TEST_F(PreemptionTest, AnotherOwnersJobIsNotNamed) {
  FakeAgent a = MakeAgent("a", 1);
  const auto submit = [&](const v1::JobSpec& spec, const std::string& owner) {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec;
    const auto response = control().Submit(request, nullptr, {.name = owner});
    EXPECT_OK(response.status());
    return response->job().id();
  };
  const std::string low = submit(Of("low", 0), "ada");
  RunUntil(low, Job::STATE_RUNNING, {&a});
  GrowOld({&a});
  const std::string urgent = submit(Of("urgent", 10), "bob");
  RunUntil(urgent, Job::STATE_RUNNING, {&a});
  for (const auto& [id, other] :
       {std::pair(low, std::pair("urgent", urgent)), std::pair(urgent, std::pair("low", low))}) {
    const auto events = store().Events(id, 0, 100);
    ASSERT_OK(events.status());
    for (const v1::JobEvent& event : *events) {
      EXPECT_THAT(event.text(), AllOf(Not(HasSubstr(other.first)), Not(HasSubstr(other.second))));
    }
    EXPECT_THAT(Get(id).message(), Not(HasSubstr(other.first)));
  }
  EXPECT_THAT(Get(low).message(), HasSubstr("gave way to a job of another owner"));
}

TEST_F(PreemptionTest, FairSharesCountWhatIsPlaced) {
  scheduling_ = {.fair_share_label = "team"};
  Restart();
  FakeAgent a = MakeAgent("a", 2);
  const auto of = [&](const std::string& name, const std::string& team) {
    v1::JobSpec spec = Of(name, 0);
    if (!team.empty()) (*spec.mutable_labels())["team"] = team;
    clock().Advance(absl::Seconds(1));
    return Submit(spec);
  };
  const std::string first = of("first", "speech");
  const std::string second = of("second", "speech");
  RunUntil(first, Job::STATE_RUNNING, {&a});
  RunUntil(second, Job::STATE_RUNNING, {&a});
  const std::string third = of("third", "speech");
  const std::string fourth = of("fourth", "vision");
  const std::string fifth = of("fifth", "");
  Round({&a});
  EXPECT_EQ(Get(fourth).queue_position(), 1);
  EXPECT_EQ(Get(fifth).queue_position(), 2);
  EXPECT_EQ(Get(third).queue_position(), 3);
  ASSERT_OK(Stop(first, v1::STOP_MODE_NOW));
  RunUntil(fourth, Job::STATE_RUNNING, {&a});
}

}  // namespace
}  // namespace nsa::server
