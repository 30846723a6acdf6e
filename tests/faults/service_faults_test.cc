// The whole service with real workers on two ranks: a stop at an exact step and a resume, a stack
// dump of a stopped rank, a damaged checkpoint. Each job ends with the losses of an uninterrupted
// run, bit for bit.
#include <sys/mount.h>

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "tests/testing/paths.h"
#include "tests/testing/service_fixture.h"
#include "tests/testing/small_job.h"
#include "tests/testing/within.h"

namespace nsa {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ServiceFaults : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    service_ = new ServiceFixture("nsa-worker");
    reference_ = new Reported[kRanks];
    const std::string id = service_->Submit(SmallJob(service_->folder() / "unbroken"));
    ASSERT_EQ(service_->WaitForEnd(id).state(), v1::Job::STATE_SUCCEEDED) << service_->Logs();
    for (int rank = 0; rank < kRanks; ++rank) reference_[rank] = Collect(service_, id, rank);
  }
  static void TearDownTestSuite() {
    delete service_;
    delete[] reference_;
  }

  // Submits the job with an output folder named after the test.
  std::string Submit() {
    out_dir_ = service_->folder() / ::testing::UnitTest::GetInstance()->current_test_info()->name();
    return service_->Submit(SmallJob(out_dir_));
  }

  void ExpectTheUnbrokenRun(const std::string& id) {
    const v1::Job job = service_->WaitForEnd(id);
    ASSERT_EQ(job.state(), v1::Job::STATE_SUCCEEDED) << job.message() << "\n" << service_->Logs();
    for (int rank = 0; rank < kRanks; ++rank) {
      const Reported run = Collect(service_, id, rank);
      EXPECT_EQ(run.steps, reference_[rank].steps) << "rank " << rank;
      // A run that was stopped has validated there, too.
      for (const auto& [step, loss] : reference_[rank].evals) {
        const auto same = run.evals.find(step);
        ASSERT_NE(same, run.evals.end()) << "rank " << rank << ", step " << step;
        EXPECT_EQ(same->second, loss) << "rank " << rank << ", step " << step;
      }
    }
  }

  // Submits the job, stops it after exactly this step and waits until it has stopped. The agent is
  // paused meanwhile, so the stop is in force before a worker starts: a job is launched only after
  // a heartbeat that follows its placement.
  std::string SubmitAndStopAt(int64_t step) {
    service_->PauseAgent();
    const std::string id = Submit();
    service_->Stop(id, v1::STOP_MODE_AT_STEP, step);
    service_->WakeAgent();
    const v1::Job job = service_->WaitForEnd(id);
    EXPECT_EQ(job.state(), v1::Job::STATE_STOPPED) << job.message() << "\n" << service_->Logs();
    EXPECT_EQ(job.reason(), "STOPPED_AT_STEP");
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(Collect(service_, id, rank).steps.rbegin()->first, step) << "rank " << rank;
    }
    return id;
  }

  // Stops a rank (SIGSTOP) after this step, which must be well before the end. The rank is stopped
  // and continued in turns, so that even a fast machine does not run far past the step.
  ProcessIdentity StopRankAfterStep(const std::string& id, int rank, int64_t step) {
    const auto dir = service_->Dir(id, 1, rank);
    const absl::Duration give_up = RealClock().Monotonic() + absl::Minutes(2);
    while (RealClock().Monotonic() < give_up) {
      const auto worker = service_->Worker(id, 1, rank);
      if (!worker.ok()) {
        absl::SleepFor(absl::Milliseconds(1));
        continue;
      }
      EXPECT_OK(SignalProcess(*worker, SIGSTOP));
      const auto status = ReadStatusPage(dir.status());
      if (status.ok() && status->step >= step) return *worker;
      EXPECT_OK(SignalProcess(*worker, SIGCONT));
      absl::SleepFor(absl::Milliseconds(2));
    }
    ADD_FAILURE() << "step " << step << " was not reached\n" << service_->Logs();
    return {};
  }

  static ServiceFixture* service_;
  static Reported* reference_;
  std::filesystem::path out_dir_;
};

ServiceFixture* ServiceFaults::service_ = nullptr;
Reported* ServiceFaults::reference_ = nullptr;

TEST_F(ServiceFaults, StopAtAStepEndsBothRanksThereAndResumeContinuesBitForBit) {
  const std::string id = SubmitAndStopAt(48);  // not a multiple of save_every
  const v1::VerifyCheckpointResponse checkpoint = service_->Verify(id, 0);
  EXPECT_EQ(checkpoint.checkpoint().step(), 48);
  EXPECT_EQ(checkpoint.problems_size(), 0);
  service_->Resume(id);
  ExpectTheUnbrokenRun(id);
}

TEST_F(ServiceFaults, AStopAtTheFirstStepAskedBeforeTheStartIsExact) {
  const std::string id = SubmitAndStopAt(1);
  EXPECT_EQ(service_->Verify(id, 0).checkpoint().step(), 1);
  service_->Resume(id);
  ExpectTheUnbrokenRun(id);
}

TEST_F(ServiceFaults, ADumpOfAStoppedRankShowsItsStacksAndTrainingGoesOn) {
  const std::string id = Submit();
  const ProcessIdentity worker = StopRankAfterStep(id, 1, 5);
  const absl::Duration start = RealClock().Monotonic();
  const v1::DumpStackResponse response = service_->DumpStack(id);
  const absl::Duration took = RealClock().Monotonic() - start;
  EXPECT_EQ(ProcessState(worker), 'T') << "a dump leaves a stopped process stopped";
  ASSERT_OK(SignalProcess(worker, SIGCONT));
  EXPECT_LT(took, absl::Seconds(5));
  ASSERT_EQ(response.dumps_size(), kRanks);
  for (const v1::StackDump& dump : response.dumps()) {
    EXPECT_EQ(dump.error(), "");
    EXPECT_THAT(dump.status(), HasSubstr(absl::StrCat("rank ", dump.rank(), "/2")));
    EXPECT_THAT(dump.stacks(), HasSubstr("nsa::train::Trainer::"));
    int64_t threads = 0;
    for (const absl::string_view part : absl::StrSplit(dump.stacks(), "\n\n")) {
      if (!absl::StartsWith(part, "thread ")) continue;
      ++threads;
      EXPECT_THAT(std::string(part), AllOf(HasSubstr("\n  #0 "), HasSubstr("\n  #2 ")));
    }
    EXPECT_GE(threads, 3);
    for (const char* name : {"nsa-worker", "control", "records", "checkpoint"}) {
      EXPECT_THAT(dump.stacks(), HasSubstr(absl::StrCat("\"", name, "\""))) << "a thread's name";
    }
    RecordProperty(absl::StrCat("dump_seconds_rank_", dump.rank()), absl::StrCat(dump.seconds()));
  }
  ExpectTheUnbrokenRun(id);
}

TEST_F(ServiceFaults, TwentyDumpsInARowDoNotDisturbTraining) {
  const std::string id = Submit();
  ASSERT_TRUE(service_->WaitForStep(id, 0, 2));
  for (int i = 0; i < 20; ++i) {
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto worker = service_->Worker(id, 1, rank);
      if (!worker.ok() || !IsAlive(*worker)) continue;
      const auto dump =
          Spawn({.argv = {Program("nsa-agent"), "dump", "--pid", absl::StrCat(worker->pid)}});
      ASSERT_OK(dump);
      waitpid(dump->pid, nullptr, 0);
    }
  }
  ExpectTheUnbrokenRun(id);
  EXPECT_EQ(service_->Get(id).restarts(), 0);
}

TEST_F(ServiceFaults, AFlippedBitInTheNewestCheckpointIsNamedAndTheOneBeforeIsUsed) {
  const std::string id = SubmitAndStopAt(50);
  const auto file = out_dir_ / "checkpoints" / "step-00000050" / "model.safetensors";
  std::string content = *ReadWholeFile(file);
  content[content.size() / 2] ^= 0x04;
  std::ofstream(file, std::ios::binary) << content;

  const v1::VerifyCheckpointResponse verdict = service_->Verify(id, 50);
  ASSERT_EQ(verdict.problems_size(), 1);
  EXPECT_THAT(verdict.problems(0), HasSubstr("model.safetensors"));
  service_->Resume(id);
  ExpectTheUnbrokenRun(id);
  std::string told;
  for (const v1::JobEvent& event : service_->Events(id)) {
    absl::StrAppend(&told, event.reason(), " ", event.text(), "\n");
  }
  EXPECT_THAT(told, AllOf(HasSubstr("CHECKPOINT_CORRUPT"), HasSubstr("step-00000050"),
                          HasSubstr("RESUMED"), HasSubstr("step-00000045")));
}

TEST_F(ServiceFaults, WithoutAnyGoodCheckpointTheJobFailsAndNeverStartsAtStepZero) {
  const std::string id = SubmitAndStopAt(7);
  const Reported stopped = Collect(service_, id, 0);
  for (const auto& entry : std::filesystem::directory_iterator(out_dir_ / "checkpoints")) {
    if (entry.is_symlink() || !entry.is_directory()) continue;
    std::ofstream(entry.path() / "model.safetensors", std::ios::binary) << "damaged";
  }
  service_->Resume(id);
  const v1::Job job = service_->WaitForEnd(id);
  EXPECT_EQ(job.state(), v1::Job::STATE_FAILED);
  EXPECT_EQ(job.reason(), "NO_VALID_CHECKPOINT") << job.message();
  EXPECT_EQ(Collect(service_, id, 0).steps, stopped.steps);
}

// The disk of out_dir is full for a while. Users who watch the job see why its rows are missing and
// when they are written again. Training continues.
TEST_F(ServiceFaults, AFullDiskOfOutDirIsSeenAndTrainingGoesOn) {
  const auto disk = service_->folder() / "small-disk";
  std::filesystem::create_directory(disk);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=64m") != 0) {
    GTEST_SKIP() << "a small file system cannot be mounted here";
  }
  const absl::Cleanup unmount = [&] { umount2(disk.c_str(), MNT_DETACH); };
  v1::JobSpec spec = SmallJob(disk / "out");
  spec.mutable_train()->set_steps(1'000'000);
  WaiveLength(&spec);
  spec.mutable_train()->set_log_every(1);
  spec.mutable_train()->set_save_every(1'000'000);
  spec.mutable_train()->set_eval_every(1'000'000);
  const std::string id = service_->Submit(spec);
  const auto error = [&] {
    const v1::Job job = service_->Get(id);
    return job.ranks_size() == kRanks ? job.ranks(0).telemetry_error() : "";
  };
  ASSERT_TRUE(service_->WaitForStep(id, 0, 3)) << service_->Logs();
  EXPECT_EQ(error(), "");
  {
    std::ofstream ballast(disk / "ballast");
    while (ballast << std::string(4096, 'x') << std::flush) continue;
  }
  EXPECT_TRUE(Within(absl::Minutes(2), [&] { return !error().empty(); })) << service_->Logs();
  EXPECT_THAT(error(), AllOf(HasSubstr("/small-disk/out/"), HasSubstr("No space left on device"),
                             HasSubstr("free space")));
  EXPECT_TRUE(service_->WaitForStep(id, 0, service_->Get(id).progress().step() + 5));
  std::filesystem::remove(disk / "ballast");
  EXPECT_TRUE(Within(absl::Minutes(2), [&] { return error().empty(); })) << error();
  service_->Stop(id, v1::STOP_MODE_GRACEFUL);
  EXPECT_EQ(service_->WaitForEnd(id).state(), v1::Job::STATE_STOPPED);
  std::vector<std::string> told;
  for (const v1::JobEvent& event : service_->Events(id)) {
    if (event.reason().starts_with("TELEMETRY_")) told.push_back(event.reason());
  }
  EXPECT_THAT(told, ::testing::AllOf(::testing::Contains("TELEMETRY_FAILED"),
                                     ::testing::Contains("TELEMETRY_RESTORED")));
  EXPECT_EQ(service_->Get(id).restarts(), 0);
}

// The folder is moved away while the job is stopped. A resumed job waits until it is back.
TEST_F(ServiceFaults, AResumedJobWaitsForTheFolderWithItsCheckpoints) {
  const std::string id = SubmitAndStopAt(48);
  const auto moved = out_dir_.string() + ".moved";
  std::filesystem::rename(out_dir_, moved);
  service_->Resume(id);
  EXPECT_TRUE(Within(absl::Minutes(2), [&] {
    const v1::Job job = service_->Get(id);
    return job.state() == v1::Job::STATE_RESTARTING && job.reason() == "CHECKPOINTS_MISSING";
  })) << service_->Get(id).message();
  EXPECT_THAT(service_->Get(id).message(), HasSubstr("has no checkpoint (step-00000048"));
  EXPECT_FALSE(std::filesystem::exists(out_dir_)) << "nothing is made in its place";
  std::filesystem::rename(moved, out_dir_);
  ExpectTheUnbrokenRun(id);
}

}  // namespace
}  // namespace nsa
