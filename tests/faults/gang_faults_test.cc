// How the daemons handle workers that crash, hang, keep failing, flood their log or cannot start,
// also when a daemon dies meanwhile. Fake workers make each failure happen at the right time.
#include <algorithm>

#include "tests/testing/service_fixture.h"
#include "tests/testing/small_job.h"

namespace nsa {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class GangFaults : public ::testing::Test {
 protected:
  GangFaults() : service_("fake_worker") {}

  // A job of two ranks with this behaviour: the labels of fake_worker.cc, without the prefix
  // "fake.".
  v1::JobSpec Spec(const std::map<std::string, std::string>& labels) {
    v1::JobSpec spec = SmallJob(service_.folder() / absl::StrCat("out-", ++jobs_));
    (*spec.mutable_labels())["fake.step_ms"] = "5";
    for (const auto& [name, value] : labels) (*spec.mutable_labels())["fake." + name] = value;
    return spec;
  }

  // Lets a job continue that waits at fake.hold_at_step.
  static void LetGo(const v1::JobSpec& spec) {
    std::filesystem::create_directories(spec.train().out_dir());
    std::ofstream(std::filesystem::path(spec.train().out_dir()) / "go") << "go";
  }

  std::string History(const std::string& id) {
    std::string text;
    for (const v1::JobEvent& event : service_.Events(id)) {
      absl::StrAppend(&text, event.reason(), ": ", event.text(), "\n");
    }
    return text;
  }

  // The text of the stacks that were saved as `number`.
  absl::StatusOr<std::string> Saved(const std::string& id, int number) {
    const std::string begin = absl::StrCat(id, ".", number, ".");
    for (const auto& file : std::filesystem::directory_iterator(service_.state_dir() / "dumps")) {
      if (file.path().filename().string().starts_with(begin)) return ReadWholeFile(file.path());
    }
    return absl::NotFoundError(begin);
  }

  void ExpectEverySkippedStepWasDoneAgain(const std::string& id) {
    for (int rank = 0; rank < kRanks; ++rank) {
      const Reported run = Collect(&service_, id, rank);
      EXPECT_EQ(run.steps.size(), static_cast<size_t>(kSteps)) << "rank " << rank;
    }
  }

  ServiceFixture service_;
  int jobs_ = 0;
};

TEST_F(GangFaults, ACrashIsTheCauseAndNotThePeersThatItTookAlong) {
  const std::string id = service_.Submit(Spec({{"crash_at_step", "23"}, {"rank", "1"}}));
  const v1::Job job = service_.WaitForEnd(id);
  EXPECT_EQ(job.state(), v1::Job::STATE_SUCCEEDED) << job.message() << service_.Logs();
  EXPECT_EQ(job.restarts(), 1);
  EXPECT_THAT(History(id), AllOf(HasSubstr("rank 1"), HasSubstr("signal 11")));
  ExpectEverySkippedStepWasDoneAgain(id);
}

TEST_F(GangFaults, AHangingRankIsDumpedAndTheGangStartsAgain) {
  v1::JobSpec spec = Spec({{"hang_at_step", "23"}, {"rank", "1"}});
  spec.mutable_restart()->set_hang_timeout_seconds(2);
  const std::string id = service_.Submit(spec);
  const v1::Job job = service_.WaitForEnd(id);
  EXPECT_EQ(job.state(), v1::Job::STATE_SUCCEEDED) << job.message() << service_.Logs();
  EXPECT_EQ(job.restarts(), 1);
  EXPECT_THAT(History(id), HasSubstr("HANG_SUSPECTED"));
  const auto dump = Saved(id, 2);
  ASSERT_OK(dump) << "1 was saved at half of the limit";
  EXPECT_THAT(*dump, AllOf(HasSubstr("Worker::HangInCollective()"),
                           HasSubstr("waiting in all_reduce"), HasSubstr("PeersKeepUp")))
      << "both ranks' stacks, taken before the gang was ended";
  ExpectEverySkippedStepWasDoneAgain(id);
}

TEST_F(GangFaults, AStoppedRankIsAHangAndDoesNoHarmWhenItIsWokenLater) {
  v1::JobSpec spec = Spec({{"step_ms", "20"}, {"hold_at_step", "11"}});
  spec.mutable_restart()->set_hang_timeout_seconds(2);
  const std::string id = service_.Submit(spec);
  ASSERT_TRUE(service_.WaitForStep(id, 0, 10));
  const auto worker = service_.Worker(id, 1, 1);
  ASSERT_OK(worker);
  ASSERT_OK(SignalProcess(*worker, SIGSTOP));
  LetGo(spec);
  service_.WaitUntil(id, [](const v1::Job& job) { return job.generation() == 2; });
  EXPECT_FALSE(IsAlive(*worker)) << "ended before the next generation starts";
  const v1::Job job = service_.WaitForEnd(id);
  EXPECT_EQ(job.state(), v1::Job::STATE_SUCCEEDED) << job.message();
  ExpectEverySkippedStepWasDoneAgain(id);
}

TEST_F(GangFaults, AWorkerThatFailsAtTheSameStepForEverIsGivenUp) {
  const std::string id =
      service_.Submit(Spec({{"exit_at_step", "8"}, {"rank", "1"}, {"generations", "1000"}}));
  const v1::Job job = service_.WaitForEnd(id);
  EXPECT_EQ(job.state(), v1::Job::STATE_FAILED);
  EXPECT_THAT(job.reason(), ::testing::AnyOf("NO_PROGRESS", "RESTART_BUDGET_EXHAUSTED"));
  EXPECT_GE(job.restarts(), 2);
  EXPECT_LE(job.restarts(), 5);
}

TEST_F(GangFaults, WhatFailedForGoodIsNotTriedAgain) {
  const std::string id = service_.Submit(Spec({{"exit_at_step", "8"},
                                               {"exit_outcome", "failed_final"},
                                               {"exit_reason", "NONFINITE_LOSS"},
                                               {"rank", "0"}}));
  const v1::Job job = service_.WaitForEnd(id);
  EXPECT_EQ(job.state(), v1::Job::STATE_FAILED);
  EXPECT_EQ(job.reason(), "NONFINITE_LOSS");
  EXPECT_EQ(job.restarts(), 0);
}

TEST_F(GangFaults, ALogFloodCostsNeitherRecordsNorSteps) {
  const std::string id = service_.Submit(Spec({{"log_bytes", "300000"}, {"rank", "0"}}));
  const v1::Job job = service_.WaitForEnd(id);
  EXPECT_EQ(job.state(), v1::Job::STATE_SUCCEEDED) << job.message();
  EXPECT_EQ(job.restarts(), 0);
  ExpectEverySkippedStepWasDoneAgain(id);
}

TEST_F(GangFaults, ACoordinatorKilledWhileAJobStopsStopsIt) {
  v1::JobSpec spec = Spec({{"step_ms", "20"}, {"ignore_stop", "1"}});
  spec.mutable_train()->set_steps(100000);
  WaiveLength(&spec);
  // Up to ten times as long while the job makes progress.
  spec.mutable_restart()->set_stop_grace_seconds(0.3);
  const std::string id = service_.Submit(spec);
  ASSERT_TRUE(service_.WaitForStep(id, 0, 5));
  service_.Stop(id, v1::STOP_MODE_GRACEFUL);
  service_.WaitUntil(id, [](const v1::Job& job) { return job.state() == v1::Job::STATE_STOPPING; });
  service_.KillCoordinator();
  service_.StartCoordinator();
  EXPECT_EQ(service_.Get(id).state(), v1::Job::STATE_STOPPING);
  const v1::Job job = service_.WaitForEnd(id);
  EXPECT_EQ(job.state(), v1::Job::STATE_STOPPED) << job.message();
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto worker = service_.Worker(id, 1, rank);
    EXPECT_TRUE(!worker.ok() || !IsAlive(*worker)) << "no worker is left behind";
  }
}

TEST_F(GangFaults, OfAJobThatIsStoppedAtOnceNoWorkerIsLeft) {
  for (int delay = 0; delay < 400; delay += 40) {
    const std::string id = service_.Submit(Spec({{"step_ms", "20"}}));
    absl::SleepFor(absl::Milliseconds(delay));  // the job is somewhere between QUEUED and RUNNING
    service_.Stop(id, v1::STOP_MODE_NOW);
    const v1::Job job = service_.WaitForEnd(id);
    ASSERT_EQ(job.state(), v1::Job::STATE_STOPPED) << job.message() << service_.Logs();
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto worker = service_.Worker(id, 1, rank);
      EXPECT_TRUE(!worker.ok() || !IsAlive(*worker)) << "stopped after " << delay << " ms";
    }
  }
}

TEST_F(GangFaults, ManyDeathsOfTheDaemonsInOneRunChangeNothing) {
  const v1::JobSpec spec = Spec({{"step_ms", "20"}, {"hold_at_step", absl::StrCat(kSteps)}});
  const std::string id = service_.Submit(spec);
  ASSERT_TRUE(service_.WaitForStep(id, 0, 1));
  const auto worker = service_.Worker(id, 1, 0);
  ASSERT_OK(worker);
  for (int kill = 0; kill < 5; ++kill) {
    if (kill % 2 == 1) service_.KillAgent();
    service_.KillCoordinator();
    absl::SleepFor(absl::Milliseconds(100 * kill));
    service_.StartCoordinator();
    EXPECT_TRUE(IsAlive(*worker));
  }
  LetGo(spec);
  const v1::Job job = service_.WaitForEnd(id);
  EXPECT_EQ(job.state(), v1::Job::STATE_SUCCEEDED) << job.message() << service_.Logs();
  EXPECT_EQ(job.restarts(), 0);
  EXPECT_EQ(job.generation(), 1);
  ExpectEverySkippedStepWasDoneAgain(id);
}

}  // namespace
}  // namespace nsa
