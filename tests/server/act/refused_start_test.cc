// Starts that are refused repeatedly: by preflight, or by a worker that does not find its
// checkpoints.
#include <csignal>
#include <filesystem>
#include <fstream>

#include "server/act/reconciler.h"
#include "tests/server/act/harness.h"

namespace nsa::server {
namespace {

using ::testing::HasSubstr;
using v1::Job;

// A job whose out_dir preflight refuses while a file is in its place.
class RefusedStarts : public Harness {
 protected:
  // Brings the job to the state in which one restart has been used and the next start has been
  // refused once.
  void RunIntoARefusal() {
    v1::JobSpec spec = Spec("full");
    spec.mutable_restart()->set_max_restarts(1);
    spec.mutable_restart()->set_backoff_seconds(10);
    id_ = Submit(spec);
    RunUntil(id_, Job::STATE_RUNNING, {&agent_});
    agent_.Train(3);
    agent_.Checkpoint();
    std::filesystem::create_directories(obstacle_.parent_path());
    std::ofstream(obstacle_) << "in the way";
    agent_.Crash(0, SIGKILL);
    RunUntil(id_, Job::STATE_RESTARTING, {&agent_});
    for (int i = 0; i < 100 && Get(id_).reason() != "PREFLIGHT_REFUSED"; ++i) Round({&agent_});
    ASSERT_EQ(Get(id_).reason(), "PREFLIGHT_REFUSED") << Get(id_).message();
  }
  double Delay() { return (*store().Find(id_))->restart_delay_seconds(); }
  // Waits for the next start and its result.
  void Wait(absl::Duration wait) {
    Round({&agent_});  // the wait begins
    clock().Advance(wait);
    for (int i = 0; i < 4; ++i) Round({&agent_});
  }

  const std::filesystem::path obstacle_ = folder_ / "out" / "full";
  FakeAgent agent_ = MakeAgent("a", 1);
  std::string id_;
};

TEST_F(RefusedStarts, AreTriedAgainEverLaterWithoutUsingUpTheBudget) {
  RunIntoARefusal();
  double delay = Delay();
  EXPECT_GE(delay, 15) << "twice the first, less jitter";
  for (int i = 0; i < 12; ++i) {
    Wait(absl::Seconds(delay));
    ASSERT_EQ(Get(id_).state(), Job::STATE_RESTARTING) << Get(id_).message();
    EXPECT_EQ(Get(id_).reason(), "PREFLIGHT_REFUSED");
    EXPECT_THAT(Get(id_).message(), HasSubstr("is not a folder"));
    EXPECT_GT(Get(id_).next_start_unix_nanos(), absl::ToUnixNanos(clock().Wall()));
    EXPECT_NE(Delay(), delay) << "it was looked at again";
    EXPECT_GT(Delay(), i < 4 ? delay : 224.9);
    EXPECT_LE(Delay(), 375);
    delay = Delay();
  }
  EXPECT_EQ(Get(id_).generation(), 1);
  EXPECT_EQ(Get(id_).restarts(), 1) << "a refused start is no restart";

  std::filesystem::remove(obstacle_);
  Wait(absl::Seconds(delay));
  RunUntil(id_, Job::STATE_RUNNING, {&agent_});
  EXPECT_EQ(Get(id_).generation(), 2);
  EXPECT_EQ(Get(id_).next_start_unix_nanos(), 0);
  agent_.Train(100);
  RunUntil(id_, Job::STATE_SUCCEEDED, {&agent_});
}

TEST_F(RefusedStarts, EndTheJobAfterADay) {
  RunIntoARefusal();
  int hours = 0;
  for (; hours < 30 && Get(id_).state() == Job::STATE_RESTARTING; ++hours) Wait(absl::Hours(1));
  EXPECT_EQ(hours, 24);
  EXPECT_EQ(Get(id_).state(), Job::STATE_FAILED);
  EXPECT_EQ(Get(id_).reason(), "PREFLIGHT_REFUSED");
  EXPECT_THAT(Get(id_).message(), HasSubstr("is not a folder"));
  EXPECT_THAT(Get(id_).message(), HasSubstr("times in 24h)"));
  std::filesystem::remove(obstacle_);
  ASSERT_OK(Resume(id_));
  RunUntil(id_, Job::STATE_RUNNING, {&agent_});
}

TEST_F(RefusedStarts, CanBeStopped) {
  RunIntoARefusal();
  ASSERT_OK(Stop(id_, v1::STOP_MODE_GRACEFUL));
  RunUntil(id_, Job::STATE_STOPPED, {&agent_});
  std::filesystem::remove(obstacle_);
  ASSERT_OK(Resume(id_));
  RunUntil(id_, Job::STATE_RUNNING, {&agent_});
}

TEST_F(RefusedStarts, AreRememberedByTheCoordinatorAsLongAsItLives) {
  RunIntoARefusal();
  for (int i = 0; i < 5; ++i) Wait(absl::Seconds(Delay()));
  Restart();
  Round({&agent_});
  EXPECT_EQ(Get(id_).reason(), "PREFLIGHT_REFUSED");
  EXPECT_GT(Delay(), 224.9);
  Wait(absl::Seconds(Delay()));
  EXPECT_EQ(Get(id_).state(), Job::STATE_RESTARTING);
  EXPECT_LT(Delay(), 26) << "counted anew";
}

// The first start is refused. Meanwhile another job uses the only slot.
TEST_F(RefusedStarts, FromTheQueueWaitWithoutSlotsAndGoOnOnceTheCauseIsGone) {
  v1::JobSpec spec = Spec("full");
  spec.mutable_restart()->set_backoff_seconds(100);
  id_ = Submit(spec);
  std::filesystem::create_directories(obstacle_.parent_path());
  std::ofstream(obstacle_) << "in the way";
  const auto refused = [&] {
    const Job job = Get(id_);
    return job.state() == Job::STATE_QUEUED && job.reason() == "PREFLIGHT_REFUSED";
  };
  for (int i = 0; i < 100 && !refused(); ++i) Round({&agent_});
  ASSERT_TRUE(refused()) << Get(id_).reason();
  EXPECT_THAT(Get(id_).message(), HasSubstr("is not a folder"));
  const absl::Duration wait =
      absl::FromUnixNanos(Get(id_).next_start_unix_nanos()) - clock().Wall();
  EXPECT_GT(wait, absl::ZeroDuration());
  EXPECT_EQ(Get(id_).queue_position(), 0) << "not in line";

  const std::string other = Submit(Spec("other"));
  RunUntil(other, Job::STATE_RUNNING, {&agent_});
  EXPECT_TRUE(refused());
  std::filesystem::remove(obstacle_);
  clock().Advance(wait);
  Round({&agent_});
  EXPECT_EQ(Get(id_).reason(), "WAITING_FOR_SLOTS");
  agent_.Train(100);
  RunUntil(other, Job::STATE_SUCCEEDED, {&agent_});
  RunUntil(id_, Job::STATE_RUNNING, {&agent_});
  EXPECT_EQ(Get(id_).next_start_unix_nanos(), 0);
  EXPECT_EQ(Get(id_).restarts(), 0);
  EXPECT_THAT(History(id_), HasSubstr("PLACED PREFLIGHT_REFUSED PLACED"));
}

TEST_F(RefusedStarts, FromTheQueueEndTheJobAfterADayAndAtOnceWhereWaitingDoesNotHelp) {
  id_ = Submit(Spec("full"));
  std::filesystem::create_directories(obstacle_.parent_path());
  std::ofstream(obstacle_) << "in the way";
  for (int i = 0; i < 100 && Get(id_).reason() != "PREFLIGHT_REFUSED"; ++i) Round({&agent_});
  int hours = 0;
  for (; hours < 30 && Get(id_).state() != Job::STATE_FAILED; ++hours) {
    clock().Advance(absl::Hours(1));
    for (int i = 0; i < 6; ++i) Round({&agent_});
  }
  EXPECT_EQ(hours, 24);
  EXPECT_EQ(Get(id_).reason(), "PREFLIGHT_REFUSED");
  EXPECT_THAT(Get(id_).message(), HasSubstr("times in 24h)"));

  const std::string taken = Submit(Spec("taken"));
  std::filesystem::create_directories(folder_ / "out" / "taken");
  std::ofstream(folder_ / "out" / "taken" / "owner.json") << R"({"job_id": "jother"})";
  RunUntil(taken, Job::STATE_FAILED, {&agent_});
  EXPECT_THAT(Get(taken).message(), HasSubstr("OUT_DIR_TAKEN"));
}

using MissingCheckpoints = Harness;

TEST_F(MissingCheckpoints, WaitsForAVolumeWithItsCheckpointsAndGoesOnWhenItIsBack) {
  FakeAgent agent = MakeAgent("a", 1);
  v1::JobSpec spec = Spec("volume");
  spec.mutable_restart()->set_max_restarts(1);
  spec.mutable_restart()->set_resume("never");
  const std::string id = Submit(spec);
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  EXPECT_EQ(agent.Find(0)->assignment.resume_from_step(), 0);
  agent.Train(7);
  agent.Checkpoint();
  agent.Crash(0, SIGKILL);
  RunUntil(id, Job::STATE_RESTARTING, {&agent});
  double delay = 0;
  for (int64_t generation = 2; generation < 9; ++generation) {  // more than max_no_progress
    for (int i = 0; i < 40 && Get(id).generation() < generation; ++i) {
      clock().Advance(absl::Seconds(20));
      Round({&agent});
    }
    Round({&agent});
    ASSERT_EQ(Get(id).generation(), generation);
    const v1::WorkerAssignment& assignment = agent.Find(0)->assignment;
    EXPECT_EQ(assignment.resume_from_step(), 7);
    EXPECT_EQ(assignment.spec().restart().resume(),
              agent.takes_resume_from_step ? "never"
                                           : spec.train().out_dir() + "/checkpoints/step-00000007");
    agent.takes_resume_from_step = !agent.takes_resume_from_step;
    agent.Finish(0, v1::OUTCOME_FAILED, "CHECKPOINTS_MISSING");
    RunUntil(id, Job::STATE_RESTARTING, {&agent});
    for (int i = 0; i < 10 && Get(id).reason() != "CHECKPOINTS_MISSING"; ++i) Round({&agent});
    EXPECT_EQ(Get(id).reason(), "CHECKPOINTS_MISSING") << Get(id).message();
    const double now = (*store().Find(id))->restart_delay_seconds();
    EXPECT_GT(now, delay);
    delay = now;
  }
  Round({&agent});  // the wait begins
  clock().Advance(absl::Seconds(delay));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  EXPECT_EQ(agent.Find(0)->seen.step(), 7);
  agent.Train(100);
  RunUntil(id, Job::STATE_SUCCEEDED, {&agent});
  EXPECT_THAT(History(id), HasSubstr("CHECKPOINTS_MISSING RESTART_SCHEDULED"));
}

using BusyFolder = Harness;

TEST_F(BusyFolder, IsWaitedForAndCountsForNothing) {
  FakeAgent agent = MakeAgent("a", 1);
  v1::JobSpec spec = Spec("shared");
  spec.mutable_restart()->set_max_restarts(1);
  const std::string id = Submit(spec);
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  agent.Train(7);
  agent.Checkpoint();
  agent.Crash(0, SIGKILL);
  // More than max_no_progress and max_restarts.
  for (int64_t generation = 2; generation < 9; ++generation) {
    for (int i = 0; i < 40 && Get(id).generation() < generation; ++i) {
      clock().Advance(absl::Seconds(20));
      Round({&agent});
    }
    Round({&agent});
    ASSERT_EQ(Get(id).generation(), generation) << Get(id).message();
    agent.Finish(0, v1::OUTCOME_FAILED, "OUT_DIR_BUSY");
    RunUntil(id, Job::STATE_RESTARTING, {&agent});
    for (int i = 0; i < 10 && Get(id).reason() != "OUT_DIR_BUSY"; ++i) Round({&agent});
    EXPECT_EQ(Get(id).reason(), "OUT_DIR_BUSY") << Get(id).message();
  }
  for (int i = 0; i < 40 && Get(id).generation() < 9; ++i) {
    clock().Advance(absl::Seconds(20));
    Round({&agent});
  }
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  agent.Train(100);
  RunUntil(id, Job::STATE_SUCCEEDED, {&agent});
}

}  // namespace
}  // namespace nsa::server
