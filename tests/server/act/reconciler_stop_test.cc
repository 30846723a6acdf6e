// Stops and resumes of jobs, with fake agents and a fake clock.
#include <csignal>
#include <filesystem>
#include <fstream>

#include "common/checkpoint/checkpoint_dir.h"
#include "server/act/reconciler.h"
#include "tests/server/act/harness.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using v1::Job;

class ReconcilerStopTest : public Harness {
 protected:
  // Stops a running job after step 10. Its newest checkpoint is of step 9.
  void StopAtStepTen(const std::string& id, FakeAgent* agent) {
    ASSERT_OK(Stop(id, v1::STOP_MODE_AT_STEP, 10));
    Round({agent});
    agent->Train(9);
    agent->Checkpoint();
    agent->Train(1);
    RunUntil(id, Job::STATE_STOPPED, {agent});
  }
};

TEST_F(ReconcilerStopTest, StopAtStepEndsEveryRankAfterExactlyThatStep) {
  FakeAgent agent = MakeAgent("a", 2);
  const std::string id = Submit(Spec("demo", 2));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  agent.Train(3);
  Round({&agent});
  ASSERT_OK(Stop(id, v1::STOP_MODE_AT_STEP, 15));
  ASSERT_OK(Stop(id, v1::STOP_MODE_AT_STEP, 11)) << "a later request replaces an earlier one";
  EXPECT_EQ(Get(id).progress().total_steps(), 20) << "of the job, not of the stop";
  Round({&agent});
  agent.Train(100);
  RunUntil(id, Job::STATE_STOPPED, {&agent});
  EXPECT_EQ(Get(id).reason(), "STOPPED_AT_STEP");
  EXPECT_EQ(Get(id).progress().step(), 11);
  EXPECT_EQ(Get(id).progress().total_steps(), 20);
  EXPECT_EQ(StoredSteps(id, 0), UpTo(11));
  EXPECT_EQ(StoredSteps(id, 1), UpTo(11));
}

TEST_F(ReconcilerStopTest, AStopAtAStepIsAcceptedBeforeTheJobStarts) {
  FakeAgent agent = MakeAgent("a", 2);
  const std::string id = Submit(Spec("demo", 2));
  ASSERT_OK(Stop(id, v1::STOP_MODE_AT_STEP, 1)) << "while it is queued";
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  agent.Train(100);
  RunUntil(id, Job::STATE_STOPPED, {&agent});
  EXPECT_EQ(Get(id).reason(), "STOPPED_AT_STEP");
  EXPECT_EQ(StoredSteps(id, 1), UpTo(1));
}

TEST_F(ReconcilerStopTest, AStopThatRanksHearOfTooLateSaysSo) {
  FakeAgent agent = MakeAgent("a", 2);
  const std::string id = Submit(Spec("demo", 2));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  ASSERT_OK(Stop(id, v1::STOP_MODE_AT_STEP, 4));
  agent.Train(6);  // before the next heartbeat
  Round({&agent});
  agent.Train(1);
  RunUntil(id, Job::STATE_STOPPED, {&agent});
  EXPECT_EQ(Get(id).reason(), "STOPPED_LATE");
  EXPECT_THAT(Get(id).message(), HasSubstr("at step 7"));
  EXPECT_THAT(Get(id).message(), HasSubstr("the stop reached the ranks after step 4"));
}

TEST_F(ReconcilerStopTest, RefusesStepsInThePastBeyondTheEndAndOfJobsThatEnded) {
  FakeAgent agent = MakeAgent("a", 1);
  const std::string id = Submit(Spec("demo"));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  agent.Train(7);
  Round({&agent});
  EXPECT_THAT(Stop(id, v1::STOP_MODE_AT_STEP, 7),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("step 7 is done")));
  EXPECT_THAT(Stop(id, v1::STOP_MODE_AT_STEP, 21),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("ends at step 20")));
  EXPECT_THAT(Stop(id, v1::STOP_MODE_UNSPECIFIED), StatusIs(absl::StatusCode::kInvalidArgument));
  agent.Train(100);
  RunUntil(id, Job::STATE_SUCCEEDED, {&agent});
  EXPECT_THAT(Stop(id, v1::STOP_MODE_NOW),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("finished already")));
}

TEST_F(ReconcilerStopTest, AGracefulStopLetsWorkersEndAndAStopNowKills) {
  FakeAgent agent = MakeAgent("a", 2);
  const std::string graceful = Submit(Spec("graceful"));
  const std::string now = Submit(Spec("now"));
  RunUntil(now, Job::STATE_RUNNING, {&agent});
  ASSERT_OK(Stop(graceful, v1::STOP_MODE_GRACEFUL));
  ASSERT_OK(Stop(now, v1::STOP_MODE_NOW));
  EXPECT_EQ(Get(graceful).state(), Job::STATE_STOPPING);
  RunUntil(graceful, Job::STATE_STOPPED, {&agent});
  RunUntil(now, Job::STATE_STOPPED, {&agent});
  EXPECT_EQ(Get(graceful).reason(), "STOPPED");
  EXPECT_EQ(Get(now).reason(), "STOPPED_BY_USER");
}

TEST_F(ReconcilerStopTest, AStopOnlyEscalates) {
  FakeAgent agent = MakeAgent("a", 1);
  agent.obeys_graceful_stops = false;
  const std::string id = Submit(Spec("demo"));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  ASSERT_OK(Stop(id, v1::STOP_MODE_GRACEFUL));
  EXPECT_OK(Stop(id, v1::STOP_MODE_GRACEFUL)) << "again is no error";
  EXPECT_THAT(Stop(id, v1::STOP_MODE_AT_STEP, 19), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                            HasSubstr("only becomes more urgent")));
  Restart();
  Round({&agent});
  EXPECT_EQ(Get(id).state(), Job::STATE_STOPPING) << "a stop survives a restart";
  ASSERT_OK(Stop(id, v1::STOP_MODE_NOW));
  RunUntil(id, Job::STATE_STOPPED, {&agent});
}

TEST_F(ReconcilerStopTest, AStopAtAStepMayBePostponed) {
  FakeAgent agent = MakeAgent("a", 1);
  const std::string id = Submit(Spec("demo"));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  ASSERT_OK(Stop(id, v1::STOP_MODE_AT_STEP, 5));
  ASSERT_OK(Stop(id, v1::STOP_MODE_AT_STEP, 15));
  EXPECT_EQ(Get(id).stop().at_step(), 15);
}

TEST_F(ReconcilerStopTest, AWorkerThatDoesNotEndInTimeIsKilled) {
  FakeAgent agent = MakeAgent("a", 1);
  agent.obeys_graceful_stops = false;
  const std::string id = Submit(Spec("stubborn"));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  ASSERT_OK(Stop(id, v1::STOP_MODE_GRACEFUL));
  Round({&agent});
  Pass(absl::Seconds(31));
  Round({&agent});
  EXPECT_TRUE(agent.Find(0)->running()) << "it still gets on";
  agent.Find(0)->seen.set_seconds_since_progress(31);
  RunUntil(id, Job::STATE_STOPPED, {&agent});
  EXPECT_THAT(History(id), HasSubstr("STOP_GRACE_EXCEEDED"));
}

TEST_F(ReconcilerStopTest, AStopDuringARestartDelayEndsTheJobWithoutStartingIt) {
  FakeAgent agent = MakeAgent("a", 1);
  v1::JobSpec spec = Spec("demo");
  spec.mutable_restart()->set_backoff_seconds(100);
  const std::string id = Submit(spec);
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  agent.Crash(0, SIGSEGV);
  RunUntil(id, Job::STATE_RESTARTING, {&agent});
  for (int i = 0; i < 4; ++i) Round({&agent});
  EXPECT_THAT(agent.workers(), IsEmpty());
  ASSERT_OK(Stop(id, v1::STOP_MODE_GRACEFUL));
  RunUntil(id, Job::STATE_STOPPED, {&agent});
  Round({&agent});
  EXPECT_THAT(agent.workers(), IsEmpty());
}

TEST_F(ReconcilerStopTest, AQueuedJobStopsAtOnce) {
  const std::string id = Submit(Spec("demo"));
  ASSERT_OK(Stop(id, v1::STOP_MODE_GRACEFUL));
  EXPECT_EQ(Get(id).state(), Job::STATE_STOPPED);
}

TEST_F(ReconcilerStopTest, ResumeContinuesAStoppedAndAFailedJobButNoOther) {
  FakeAgent agent = MakeAgent("a", 1);
  const std::string id = Submit(Spec("demo"));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  EXPECT_THAT(Resume(id), StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_NO_FATAL_FAILURE(StopAtStepTen(id, &agent));
  const double ran = Get(id).run_seconds();
  EXPECT_GT(ran, 0);
  ASSERT_OK(Resume("demo"));
  EXPECT_EQ(Get(id).run_seconds(), ran) << "the time before a resume counts";
  EXPECT_EQ(Get(id).state(), Job::STATE_QUEUED);
  EXPECT_EQ(Get(id).end_unix_nanos(), 0);
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  agent.Train(100);
  RunUntil(id, Job::STATE_SUCCEEDED, {&agent});
  EXPECT_EQ(Get(id).progress().step(), 20);
  EXPECT_THAT(Resume(id), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(ReconcilerStopTest, AFinishedJobIsTrainedFurtherWhenItsStepsAreRaised) {
  FakeAgent agent = MakeAgent("a", 1);
  const std::string id = Submit(Spec("demo"));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  agent.Train(100);
  RunUntil(id, Job::STATE_SUCCEEDED, {&agent});
  EXPECT_THAT(Resume(id), StatusIs(absl::StatusCode::kFailedPrecondition,
                                   HasSubstr("nsactl resume " + id + " --set train.steps=40")));
  v1::JobSpec spec = Get(id).spec();
  spec.mutable_train()->set_steps(30);
  ASSERT_OK(Resume(id, "r2", spec));
  EXPECT_EQ(Get(id).spec().train().steps(), 30);
  EXPECT_EQ(Get(id).progress().total_steps(), 30);
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  agent.Train(100);
  RunUntil(id, Job::STATE_SUCCEEDED, {&agent});
  EXPECT_EQ(Get(id).progress().step(), 30);
}

TEST_F(ReconcilerStopTest, AResumeWithStepsThatAreDoneIsRefused) {
  FakeAgent agent = MakeAgent("a", 1);
  const std::string id = Submit(Spec("demo"));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  ASSERT_NO_FATAL_FAILURE(StopAtStepTen(id, &agent));
  ASSERT_EQ(Get(id).progress().checkpoint_step(), 9);
  v1::JobSpec spec = Get(id).spec();
  for (const int steps : {5, 9}) {
    spec.mutable_train()->set_steps(steps);
    EXPECT_THAT(Resume(id, "", spec),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         StartsWith("train.steps: " + std::to_string(steps) +
                                    " (the newest checkpoint is of step 9); set more steps")));
  }
  EXPECT_EQ(Get(id).state(), Job::STATE_STOPPED);
  EXPECT_EQ(Get(id).spec().train().steps(), 20);
  EXPECT_EQ(Get(id).progress().total_steps(), 20);
  spec.mutable_train()->set_steps(10);
  ASSERT_OK(Resume(id, "r2", spec));
}

// Only its first start begins afresh.
TEST_F(ReconcilerStopTest, AJobThatNeverResumesOthersContinuesItself) {
  FakeAgent agent = MakeAgent("a", 1);
  v1::JobSpec spec = Spec("demo");
  spec.mutable_restart()->set_resume("never");
  const std::string id = Submit(spec);
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  ASSERT_NO_FATAL_FAILURE(StopAtStepTen(id, &agent));
  std::filesystem::create_directories(CheckpointsDir(spec.train().out_dir()) / CheckpointName(9));
  ASSERT_OK(Resume(id, "r2", Get(id).spec()));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
}

TEST_F(ReconcilerStopTest, AResumeMayNotChangeWhatAContinuedRunKeeps) {
  const std::string id = Submit(Spec("demo"));
  ASSERT_OK(Stop(id, v1::STOP_MODE_NOW));
  v1::JobSpec spec = Get(id).spec();
  spec.mutable_train()->set_lr(0.5);
  EXPECT_THAT(Resume(id, "", spec), StatusIs(absl::StatusCode::kInvalidArgument,
                                             AllOf(HasSubstr("train.lr: "), HasSubstr("-> 0.5"))));
  spec = Get(id).spec();
  spec.mutable_train()->set_out_dir(folder_ / "out" / "other");
  EXPECT_THAT(Resume(id, "", spec),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("train.out_dir")));
  spec = Get(id).spec();
  spec.mutable_train()->set_steps(0);
  EXPECT_THAT(Resume(id, "", spec),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("train.steps")));
  EXPECT_EQ(Get(id).state(), Job::STATE_STOPPED);
}

TEST_F(ReconcilerStopTest, DeletingAJobGivesUpItsFolder) {
  const std::string id = Submit(Spec("demo"));
  ASSERT_OK(Stop(id, v1::STOP_MODE_NOW));
  const std::filesystem::path out_dir = Get(id).spec().train().out_dir();
  std::filesystem::create_directories(out_dir);
  std::ofstream(out_dir / "owner.json") << "{\"job_id\": \"" << id << "\"}";
  v1::SubmitJobRequest again;
  *again.mutable_spec() = Spec("demo");
  EXPECT_THAT(control().Submit(again).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("belongs to job " + id)));
  v1::DeleteJobRequest request;
  request.set_job(id);
  ASSERT_OK(control().Delete(request, "a test").status());
  EXPECT_FALSE(std::filesystem::exists(out_dir / "owner.json"));
  const auto submitted = control().Submit(again);
  ASSERT_OK(submitted.status());
  EXPECT_EQ(submitted->report().start(), "starts afresh in " + out_dir.string());
}

TEST_F(ReconcilerStopTest, DeletingAJobLeavesAFolderThatAnotherOneTook) {
  const std::string id = Submit(Spec("demo"));
  ASSERT_OK(Stop(id, v1::STOP_MODE_NOW));
  const std::filesystem::path out_dir = Get(id).spec().train().out_dir();
  std::filesystem::create_directories(out_dir);
  std::ofstream(out_dir / "owner.json") << R"({"job_id": "jother"})";
  v1::DeleteJobRequest request;
  request.set_job(id);
  ASSERT_OK(control().Delete(request, "a test").status());
  EXPECT_TRUE(std::filesystem::exists(out_dir / "owner.json"));
}

TEST_F(ReconcilerStopTest, AResumeThatIsSentAgainResumesOnce) {
  FakeAgent agent = MakeAgent("a", 1);
  const std::string id = Submit(Spec("demo"), "r1");
  ASSERT_OK(Stop(id, v1::STOP_MODE_NOW));
  ASSERT_OK(Resume(id, "r2"));
  EXPECT_EQ(Get(id).state(), Job::STATE_QUEUED);
  ASSERT_OK(Stop(id, v1::STOP_MODE_NOW));
  Restart();
  ASSERT_OK(Resume(id, "r2")) << "the answer was lost and the request is sent again";
  EXPECT_EQ(Get(id).state(), Job::STATE_STOPPED) << "the later stop counts";
  EXPECT_THAT(Resume("demo", "r1"), StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(Resume(id, std::string(200, 'r')), StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_OK(Resume(id, "r3"));
  EXPECT_EQ(Get(id).state(), Job::STATE_QUEUED);
  EXPECT_THAT(Resume(id, "r4"), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(ReconcilerStopTest, AStopAtAStepThatWillBeDoneAgainIsAccepted) {
  FakeAgent agent = MakeAgent("a", 1);
  const std::string id = Submit(Spec("demo"));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  agent.Train(5);
  agent.Checkpoint();
  agent.Train(10);
  Round({&agent});
  EXPECT_THAT(Stop(id, v1::STOP_MODE_AT_STEP, 8),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("step 15 is done")));
  ASSERT_OK(Stop(id, v1::STOP_MODE_NOW));
  RunUntil(id, Job::STATE_STOPPED, {&agent});
  ASSERT_OK(Resume(id));
  EXPECT_THAT(Stop(id, v1::STOP_MODE_AT_STEP, 5),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("step 5 is done")));
  ASSERT_OK(Stop(id, v1::STOP_MODE_AT_STEP, 8)) << "it goes on from the checkpoint of step 5";
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  agent.Train(100);
  RunUntil(id, Job::STATE_STOPPED, {&agent});
  EXPECT_EQ(Get(id).reason(), "STOPPED_AT_STEP");
  EXPECT_EQ(Get(id).progress().step(), 8);
}

TEST_F(ReconcilerStopTest, WorkersThatSomebodyElseStoppedStartAgainUncounted) {
  FakeAgent agent = MakeAgent("a", 1);
  const std::string id = Submit(Spec("demo"));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  agent.Train(5);
  agent.Checkpoint();
  agent.Finish(0, v1::OUTCOME_STOPPED, "SIGTERM");
  RunUntil(id, Job::STATE_RESTARTING, {&agent});
  EXPECT_THAT(Get(id).reason(), AnyOf("PREEMPTED"));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  const auto stored = store().Find(id);
  EXPECT_EQ((*stored)->counted_restart_unix_nanos_size(), 0);
}

TEST_F(ReconcilerStopTest, AStopAtALaterStepDoesNotMakeAStopFromOutsideTheEnd) {
  FakeAgent agent = MakeAgent("a", 2);
  const std::string id = Submit(Spec("demo", 2));
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  ASSERT_OK(Stop(id, v1::STOP_MODE_AT_STEP, 9));
  Round({&agent});
  agent.Train(5);
  agent.Checkpoint();
  for (const int rank : {0, 1}) agent.Finish(rank, v1::OUTCOME_STOPPED, "SIGTERM");
  RunUntil(id, Job::STATE_RESTARTING, {&agent});
  EXPECT_EQ(Get(id).reason(), "PREEMPTED");
  RunUntil(id, Job::STATE_RUNNING, {&agent});
  EXPECT_EQ((*store().Find(id))->counted_restart_unix_nanos_size(), 0);
  agent.Train(100);
  RunUntil(id, Job::STATE_STOPPED, {&agent});
  EXPECT_EQ(Get(id).reason(), "STOPPED_AT_STEP");
  EXPECT_EQ(Get(id).progress().step(), 9);
}

}  // namespace
}  // namespace nsa::server
