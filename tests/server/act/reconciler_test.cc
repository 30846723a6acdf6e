// Jobs from submit to end, with fake agents and a fake clock.
#include "server/act/reconciler.h"

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/server/act/harness.h"

namespace nsa::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using v1::Job;

using ReconcilerTest = Harness;

TEST_F(ReconcilerTest, AJobGoesFromSubmitToItsLastStep) {
  FakeAgent agent = MakeAgent("a", 2);
  const std::string id = Submit(Spec("demo", 2));
  EXPECT_EQ(Get(id).state(), Job::STATE_QUEUED);
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  EXPECT_EQ(agent.workers().size(), 2u);
  const Job running = Get(id);
  EXPECT_EQ(running.generation(), 1);
  ASSERT_EQ(running.ranks_size(), 2);
  EXPECT_EQ(running.ranks(1).state(), "RUNNING");
  EXPECT_EQ(running.ranks(1).node(), "a");

  agent.Train(12);
  Round({&agent});
  EXPECT_EQ(Get(id).progress().step(), 12);
  EXPECT_EQ(Get(id).progress().total_steps(), 20);
  EXPECT_NEAR(Get(id).progress().eta_seconds(), 8 * 256 / 1000.0, 1e-6);

  agent.Train(100);
  RunUntil(id, Job::STATE_SUCCEEDED, {&agent});
  EXPECT_EQ(History(id), "SUBMITTED PLACED LAUNCHED ALL_RANKS_UP COMPLETED");
  EXPECT_EQ(StoredSteps(id, 0), UpTo(20));
  EXPECT_EQ(StoredSteps(id, 1), UpTo(20));
  Round({&agent});
  EXPECT_THAT(agent.workers(), IsEmpty()) << "run folders are removed";
}

TEST_F(ReconcilerTest, AQueuedJobSaysWhyItWaitsAndWhere) {
  const std::string first = Submit(Spec("first"));
  Look();
  EXPECT_EQ(Get(first).reason(), "NO_NODES");
  FakeAgent agent = MakeAgent("a", 1);
  RunUntil(first, Job::STATE_RUNNING, {&agent});
  const std::string second = Submit(Spec("second"));
  const std::string third = Submit(Spec("third"));
  Look();
  EXPECT_EQ(Get(second).reason(), "WAITING_FOR_SLOTS");
  EXPECT_EQ(Get(second).queue_position(), 1);
  EXPECT_EQ(Get(third).reason(), "BEHIND_ANOTHER_JOB");
  EXPECT_EQ(Get(third).queue_position(), 2);
}

TEST_F(ReconcilerTest, ACrashRestartsTheWholeGangFromItsCheckpoint) {
  FakeAgent agent = MakeAgent("a", 2);
  const std::string id = Submit(Spec("demo", 2));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  agent.Train(7);
  agent.Checkpoint();
  agent.Train(2);
  agent.Finish(0, v1::OUTCOME_FAILED, "PEER_LOST");
  agent.Crash(1, SIGSEGV);
  RunUntil(id, Job::STATE_RESTARTING, {&agent});
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  const Job job = Get(id);
  EXPECT_EQ(job.generation(), 2);
  EXPECT_EQ(job.restarts(), 1);
  agent.Train(100);
  RunUntil(id, Job::STATE_SUCCEEDED, {&agent});
  EXPECT_THAT(History(id), HasSubstr("RESTART_SCHEDULED RESTARTED ALL_RANKS_UP COMPLETED"));
  std::vector<int64_t> expected = UpTo(9);
  for (const int64_t step : UpTo(20, 8)) expected.push_back(step);
  EXPECT_EQ(StoredSteps(id, 0), expected);
  const auto events = store().Events(id, 0, 100);
  for (const v1::JobEvent& event : *events) {
    if (event.reason() != "RESTART_SCHEDULED") continue;
    EXPECT_EQ(event.rank(), 1) << "rank 0 only lost its peer";
    EXPECT_THAT(event.text(), HasSubstr("RANK_CRASHED"));
  }
}

TEST_F(ReconcilerTest, TheSurvivorsOfACrashAreKilledBeforeTheNextStart) {
  FakeAgent agent = MakeAgent("a", 2);
  const std::string id = Submit(Spec("wide", 2));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  agent.Crash(1, SIGABRT);
  Round({&agent});
  EXPECT_EQ(Get(id).state(), Job::STATE_RESTARTING);
  EXPECT_TRUE(agent.Find(0)->running());
  for (int i = 0; i < 10; ++i) Round({});
  EXPECT_EQ(Get(id).generation(), 1) << "rank 0 has not been heard to have ended";
  Round({&agent});
  EXPECT_FALSE(agent.Find(0)->running());
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  EXPECT_EQ(Get(id).generation(), 2);
}

TEST_F(ReconcilerTest, AJobIsAcceptedIfSomeMachineSuitsIt) {
  FakeAgent small = MakeAgent("a", 1);
  FakeAgent wide = MakeAgent("b", 2);
  Round({&small, &wide});
  const std::string id = Submit(Spec("wide", 2));
  RunUntil(id, Job::STATE_RUNNING, {&small, &wide});
}

TEST_F(ReconcilerTest, GivesUpAfterThreeStartsWithoutANewCheckpoint) {
  FakeAgent agent = MakeAgent("a", 1);
  const std::string id = Submit(Spec("loop"));
  for (int generation = 1; generation <= 3; ++generation) {
    RunUntil(id, Job::STATE_RUNNING, {&agent});
    EXPECT_EQ(Get(id).generation(), generation);
    agent.Train(4);
    agent.Crash(0, SIGSEGV);
    RunUntil(id, generation < 3 ? Job::STATE_RESTARTING : Job::STATE_FAILED, {&agent});
  }
  EXPECT_EQ(Get(id).reason(), "NO_PROGRESS");
  EXPECT_EQ(Get(id).restarts(), 2);
}

TEST_F(ReconcilerTest, DoesNotGiveUpAHealthyJobThatIsKilledBeforeItsCheckpointsAreDue) {
  FakeAgent agent = MakeAgent("a", 1);
  v1::JobSpec spec = Spec("slow");
  spec.mutable_restart()->set_max_restarts(100);
  const std::string id = Submit(spec);
  for (int generation = 1; generation <= 12; ++generation) {
    RunUntil(id, Job::STATE_RUNNING, {&agent});
    EXPECT_EQ(Get(id).generation(), generation);
    agent.Train(4);  // the first checkpoint is due at step 5
    Round({&agent});
    agent.Crash(0, SIGKILL);
    RunUntil(id, generation < 12 ? Job::STATE_RESTARTING : Job::STATE_FAILED, {&agent});
  }
  EXPECT_EQ(Get(id).reason(), "NO_PROGRESS") << "but not for ever";
}

TEST_F(ReconcilerTest, GivesUpAJobThatIsKilledBeforeItsFirstStep) {
  FakeAgent agent = MakeAgent("a", 1);
  const std::string id = Submit(Spec("loop"));
  for (int generation = 1; generation <= 3; ++generation) {
    RunUntil(id, Job::STATE_RUNNING, {&agent});
    agent.Crash(0, SIGKILL);
    RunUntil(id, generation < 3 ? Job::STATE_RESTARTING : Job::STATE_FAILED, {&agent});
  }
  EXPECT_EQ(Get(id).reason(), "NO_PROGRESS");
}

TEST_F(ReconcilerTest, SpendsTheRestartBudgetOnlyOnce) {
  FakeAgent agent = MakeAgent("a", 1);
  v1::JobSpec spec = Spec("budget");
  spec.mutable_restart()->set_max_restarts(2);
  const std::string id = Submit(spec);
  for (int generation = 1; generation <= 3; ++generation) {
    RunUntil(id, Job::STATE_RUNNING, {&agent});
    agent.Train(1);
    agent.Checkpoint();
    agent.Crash(0, SIGSEGV);
    RunUntil(id, generation < 3 ? Job::STATE_RESTARTING : Job::STATE_FAILED, {&agent});
  }
  EXPECT_EQ(Get(id).reason(), "RESTART_BUDGET_EXHAUSTED");
}

TEST_F(ReconcilerTest, DoesNotRestartWhatFailedForGood) {
  FakeAgent agent = MakeAgent("a", 1);
  const std::string id = Submit(Spec("bad"));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  agent.Finish(0, v1::OUTCOME_FAILED_FINAL, "NO_VALID_CHECKPOINT");
  RunUntil(id, Job::STATE_FAILED, {&agent});
  EXPECT_EQ(Get(id).reason(), "NO_VALID_CHECKPOINT");
  EXPECT_EQ(Get(id).restarts(), 0);
}

TEST_F(ReconcilerTest, ARestartOfTheCoordinatorKillsNothingAndLosesNothing) {
  FakeAgent agent = MakeAgent("a", 2);
  const std::string id = Submit(Spec("demo", 2));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  const int64_t pid = agent.Find(0)->seen.pid();
  for (int i = 0; i < 5; ++i) {
    agent.Train(2);
    if (i % 2 == 0) {
      ASSERT_OK(agent.Report());
    }
    clock().Advance(absl::Seconds(20));
    Restart();
    Look();
    EXPECT_EQ(Get(id).state(), Job::STATE_RUNNING) << "nothing is known, so nothing has failed";
    EXPECT_EQ(Get(id).ranks(0).state(), "UNKNOWN");
    Round({&agent});
    EXPECT_EQ(agent.Find(0)->seen.pid(), pid);
    EXPECT_EQ(Get(id).ranks(0).state(), "RUNNING");
  }
  agent.Train(100);
  Restart();
  RunUntil(id, Job::STATE_SUCCEEDED, {&agent});
  EXPECT_EQ(Get(id).restarts(), 0);
  EXPECT_EQ(Get(id).generation(), 1);
  EXPECT_EQ(StoredSteps(id, 0), UpTo(20));
  EXPECT_EQ(StoredSteps(id, 1), UpTo(20));
}

TEST_F(ReconcilerTest, ARestartOfTheCoordinatorInEveryStateGoesOnWhereItWas) {
  FakeAgent agent = MakeAgent("a", 1);
  v1::JobSpec spec = Spec("demo");
  // Each run of the coordinator lasts half a second, and restart delays begin again with each run.
  spec.mutable_restart()->set_backoff_seconds(0.3);
  const std::string id = Submit(spec);
  for (int i = 0; i < 100 && !IsTerminal(Get(id).state()); ++i) {
    Restart();
    Round({&agent});
    if (Get(id).state() == Job::STATE_RUNNING) {
      agent.Train(3);
      agent.Checkpoint();
      if (i % 7 == 0) agent.Crash(0, SIGKILL);
    }
    clock().Advance(absl::Seconds(1));
  }
  EXPECT_EQ(Get(id).state(), Job::STATE_SUCCEEDED) << Get(id).reason();
}

TEST_F(ReconcilerTest, ASilentNodeIsUnknownForFiveMinutesAndThenItsJobsMoveOn) {
  FakeAgent a = MakeAgent("a", 1);
  FakeAgent b = MakeAgent("b", 1);
  const std::string id = Submit(Spec("demo"));
  RunUntil(id, Job::STATE_RUNNING, {&a});
  Pass(absl::Seconds(60));
  Round({&b});
  EXPECT_EQ(Get(id).state(), Job::STATE_RUNNING);
  EXPECT_EQ(Get(id).ranks(0).state(), "UNKNOWN");
  Round({&a, &b});
  EXPECT_EQ(Get(id).restarts(), 0) << "it came back in time";
  Pass(absl::Seconds(301));
  for (int i = 0; i < 10; ++i) Round({&b});
  EXPECT_EQ(Get(id).state(), Job::STATE_RUNNING);
  EXPECT_EQ(Get(id).ranks(0).node(), "b");
  EXPECT_EQ(Get(id).generation(), 2);
  EXPECT_TRUE(a.Find(0)->running()) << "nobody could tell it";
  Round({&a, &b});
  EXPECT_FALSE(a.Find(0)->running()) << "a rank of an old generation is ended when it comes back";
  EXPECT_EQ(Get(id).state(), Job::STATE_RUNNING);
}

TEST_F(ReconcilerTest, ACoordinatorThatStoodStillBlamesNobodyForIt) {
  FakeAgent a = MakeAgent("a", 1);
  FakeAgent b = MakeAgent("b", 1);
  const std::string id = Submit(Spec("demo"));
  const std::string stopping = Submit(Spec("stopping"));
  RunUntil(stopping, Job::STATE_RUNNING, {&a, &b});
  FakeAgent& agent = Get(stopping).ranks(0).node() == "a" ? a : b;
  FakeAgent& lost = Get(stopping).ranks(0).node() == "a" ? b : a;
  for (FakeAgent* each : {&a, &b}) each->obeys_graceful_stops = false;
  ASSERT_OK(Stop(stopping, v1::STOP_MODE_GRACEFUL));
  Round({&a, &b});

  clock().Advance(absl::Hours(1));  // SIGSTOP, a frozen machine, a disk that hung
  Look();                           // before the first heartbeat
  EXPECT_EQ(Get(id).state(), Job::STATE_RUNNING);
  EXPECT_EQ(Get(id).ranks(0).state(), "UNKNOWN");
  Round({&agent});
  EXPECT_EQ(Get(stopping).state(), Job::STATE_STOPPING);
  EXPECT_TRUE(agent.Find(0)->running()) << "its grace is not over";
  for (int i = 0; i < 590; ++i) Round({&agent});
  EXPECT_EQ(Get(id).state(), Job::STATE_RUNNING) << Get(id).message();
  EXPECT_EQ(Get(id).restarts(), 0);
  // A machine that stays silent from then on becomes lost as usual.
  for (int i = 0; i < 20 && Get(id).restarts() == 0; ++i) Round({&agent});
  EXPECT_EQ(Get(id).restarts(), 1);
  EXPECT_TRUE(lost.Find(0)->running());
}

// Gives the agent an A100 whose memory is free.
v1::GpuInfo* AddGpu(FakeAgent* agent) {
  agent->node().set_cuda_worker(true);
  agent->node().set_driver_version("580.1");
  v1::GpuInfo* gpu = agent->node().add_gpus();
  gpu->set_uuid("GPU-0");
  gpu->set_name("NVIDIA A100-SXM4-80GB");
  gpu->set_memory_bytes(int64_t{80} << 30);
  gpu->set_free_bytes(int64_t{79} << 30);
  gpu->set_compute_capability(80);
  return gpu;
}

v1::JobSpec OnAGpu(v1::JobSpec spec) {
  spec.mutable_runtime()->set_device(v1::DEVICE_CUDA);
  spec.mutable_runtime()->set_precision(v1::PRECISION_BF16);
  return spec;
}

TEST_F(ReconcilerTest, AGpuThatFailsUnderAJobIsNamedOnceInItsEvents) {
  FakeAgent agent = MakeAgent("a", 1);
  v1::GpuInfo* gpu = AddGpu(&agent);
  Round({&agent});
  const std::string id = Submit(OnAGpu(Spec("demo")));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  EXPECT_THAT(History(id), testing::Not(HasSubstr("GPU_FAULT")));
  gpu->set_fault("2 uncorrectable memory errors");
  for (int i = 0; i < 4; ++i) Round({&agent});
  EXPECT_EQ(History(id), "SUBMITTED PLACED LAUNCHED ALL_RANKS_UP GPU_FAULT");
  EXPECT_EQ(Get(id).state(), Job::STATE_RUNNING);
  gpu->set_fault("XID 79: the GPU has fallen off the bus");
  Round({&agent});
  EXPECT_EQ(History(id), "SUBMITTED PLACED LAUNCHED ALL_RANKS_UP GPU_FAULT GPU_FAULT");
}

TEST_F(ReconcilerTest, AGpuIsLookedAtAsItIsAfterThePlacement) {
  FakeAgent agent = MakeAgent("a", 1);
  v1::GpuInfo* gpu = AddGpu(&agent);
  // Measured while the previous job still used nearly all memory.
  gpu->set_free_bytes(int64_t{1} << 24);
  agent.node().set_gpus_age_seconds(4);
  const v1::JobSpec spec = OnAGpu(Spec("next"));
  Round({&agent});
  const std::string id = Submit(spec);
  for (int i = 0; i < 8; ++i) {
    Round({&agent});
    ASSERT_NE(StateName(Get(id).state()), "FAILED") << Get(id).message();
  }
  EXPECT_EQ(Get(id).state(), Job::STATE_PREFLIGHT);
  EXPECT_EQ(Get(id).generation(), 0);
  gpu->set_free_bytes(int64_t{79} << 30);
  agent.node().set_gpus_age_seconds(0.1);
  RunUntil(id, Job::STATE_RUNNING, {&agent});

  // The same after a crash.
  agent.node().set_gpus_age_seconds(15);
  agent.Train(3);
  agent.Checkpoint();
  agent.Crash(0, SIGKILL);
  for (int i = 0; i < 20; ++i) Round({&agent});
  EXPECT_EQ(Get(id).state(), Job::STATE_RESTARTING);
  // A driver that no longer measures anything does not hold a job back for ever.
  agent.node().set_gpus_age_seconds(10'000);
  for (int i = 0; i < 80 && Get(id).generation() == 1; ++i) Round({&agent});
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  EXPECT_EQ(Get(id).generation(), 2);
}

TEST_F(ReconcilerTest, AJumpOfTheWallClockChangesNothing) {
  FakeAgent agent = MakeAgent("a", 1);
  const std::string id = Submit(Spec("demo"));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  for (const absl::Duration jump : {absl::Hours(1), -absl::Hours(2)}) {
    clock().JumpWall(jump);
    Round({&agent});
    EXPECT_EQ(Get(id).state(), Job::STATE_RUNNING);
    EXPECT_EQ(Get(id).ranks(0).state(), "RUNNING");
  }
}

TEST_F(ReconcilerTest, MessagesSpeakOfOneRankAndOfStopsInWords) {
  FakeAgent agent = MakeAgent("a", 1);
  agent.obeys_graceful_stops = false;
  const std::string id = Submit(Spec("demo"));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  EXPECT_EQ(Get(id).message(), "1 rank up");
  EXPECT_THAT(Resume(id),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is training (failed or")));
  ASSERT_OK(Stop(id, v1::STOP_MODE_GRACEFUL));
  EXPECT_THAT(Stop(id, v1::STOP_MODE_AT_STEP, 19),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("a stop at a step")));
}

TEST_F(ReconcilerTest, AnAgentThatWasRestartedKeepsItsWorkers) {
  FakeAgent agent = MakeAgent("a", 1);
  const std::string id = Submit(Spec("demo"));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  const int64_t pid = agent.Find(0)->seen.pid();
  clock().Advance(absl::Seconds(30));
  agent.Restart();
  Round({&agent});
  EXPECT_EQ(agent.Find(0)->seen.pid(), pid);
  EXPECT_EQ(Get(id).restarts(), 0);
}

TEST_F(ReconcilerTest, TwoMachinesWithOneNameAreToldSo) {
  FakeAgent agent = MakeAgent("a", 1);
  ASSERT_OK(agent.Beat());
  FakeAgent twin = MakeAgent("a", 1);
  twin.Restart();
  ASSERT_OK(twin.Beat());
  EXPECT_THAT(agent.Beat(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                     HasSubstr("also used by another agent")));
}

}  // namespace
}  // namespace nsa::server
