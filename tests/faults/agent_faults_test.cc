// The agent when it, its coordinator or its workers die, or its files on disk are damaged.
#include <sys/stat.h>

#include <random>

#include "absl/strings/str_split.h"
#include "common/run/status_page.h"
#include "nsa/v1/worker.pb.h"
#include "tests/testing/agent_fixture.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

using AgentFaults = AgentFixture;

TEST_F(AgentFaults, KilledTenTimesItLosesAndDoublesNothing) {
  StartAgent();
  const ProcessIdentity worker =
      RunWorker(Assignment(kJob, 100000, {{"step_ms", "1"}, {"log_bytes", "333"}}));
  std::mt19937 random(1);
  for (int kill = 0; kill < 10; ++kill) {
    absl::SleepFor(absl::Milliseconds(std::uniform_int_distribution<int>(20, 250)(random)));
    KillAgent();
    absl::SleepFor(absl::Milliseconds(std::uniform_int_distribution<int>(0, 50)(random)));
    StartAgent();
    ASSERT_TRUE(coordinator_.WaitForHeartbeat());
    ASSERT_EQ(coordinator_.Observation(kJob).pid(), worker.pid) << "kill " << kill;
    ASSERT_TRUE(IsAlive(worker));
  }
  EXPECT_EQ(coordinator_.Incarnations().size(), 11U);
  coordinator_.SetStop(kJob, v1::STOP_MODE_GRACEFUL);
  ASSERT_TRUE(WaitForEnd(kJob));
  const std::vector<int64_t> steps = coordinator_.Steps(kJob);
  EXPECT_GT(steps.size(), 200U);
  EXPECT_EQ(steps, OneTo(static_cast<int64_t>(steps.size())));
  EXPECT_EQ(coordinator_.Records(kJob).back().finished().step(),
            static_cast<int64_t>(steps.size()));
  EXPECT_EQ(coordinator_.Log(kJob), *ReadWholeFile(Dir(kJob).log()));
  EXPECT_EQ(coordinator_.Log(kJob).size(), steps.size() * 333U);
}

TEST_F(AgentFaults, AWorkerThatEndsWhileNoAgentRunsIsReportedByTheNext) {
  StartAgent();
  RunWorker(Assignment(kJob, 60, {{"hold_at_step", "50"}}));
  const Key failing = {"job-b", 1, 0};
  RunWorker(Assignment(
      failing, 1000, {{"hold_at_step", "50"}, {"exit_at_step", "60"}, {"exit_outcome", "failed"}}));
  const Key crashing = {"job-c", 1, 0};
  RunWorker(Assignment(crashing, 1000, {{"hold_at_step", "50"}, {"crash_at_step", "60"}}));
  KillAgent();
  for (const auto& [key, identity] : workers_) LetGo(key);
  for (const auto& [key, identity] : workers_) {
    EXPECT_TRUE(Eventually([&identity = identity] { return !IsAlive(identity); }));
  }
  StartAgent();
  ASSERT_TRUE(WaitForEnd(kJob));
  EXPECT_EQ(coordinator_.Observation(kJob).exit_code(), 0);
  EXPECT_FALSE(coordinator_.Observation(kJob).machine_restarted());
  EXPECT_EQ(coordinator_.Steps(kJob), OneTo(60));
  ASSERT_TRUE(WaitForEnd(failing));
  EXPECT_EQ(coordinator_.Observation(failing).exit_code(), 1);
  ASSERT_TRUE(WaitForEnd(crashing));
  EXPECT_EQ(coordinator_.Observation(crashing).exit_code(), -1) << "nobody could know";
  EXPECT_EQ(coordinator_.Observation(crashing).exit_signal(), 0);
  EXPECT_EQ(coordinator_.Steps(crashing), OneTo(59));
}

TEST_F(AgentFaults, HowAWorkerEndedIsRememberedOverTheAgentsDeath) {
  StartAgent();
  coordinator_.RefuseRecords(grpc::StatusCode::UNAVAILABLE);
  coordinator_.Want(Assignment(kJob, 100, {{"crash_at_step", "5"}, {"crash_signal", "7"}}));
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(Dir(kJob).path / "exit.json"); }));
  KillAgent();
  coordinator_.RefuseRecords(grpc::StatusCode::OK);
  StartAgent();
  ASSERT_TRUE(WaitForEnd(kJob));
  EXPECT_EQ(coordinator_.Observation(kJob).exit_signal(), 7);
}

TEST_F(AgentFaults, AWorkerIsFoundAlthoughTheAgentDiedBeforeItWroteTheIdentity) {
  StartAgent();
  const ProcessIdentity worker = RunWorker(Assignment(kJob, 1000000));
  KillAgent();
  ASSERT_TRUE(std::filesystem::remove(Dir(kJob).identity()));
  StartAgent();
  ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  EXPECT_EQ(coordinator_.Observation(kJob).pid(), worker.pid);
  ASSERT_TRUE(coordinator_.WaitForStep(kJob, 10));
}

// While the worker runs, its log is replaced by a link to somebody else's file, then by a pipe,
// whose open() waits for ever. The job's records still arrive, and nothing of the other file is
// sent.
TEST_F(AgentFaults, ALogExchangedForALinkOrAPipeSendsNothingElse) {
  StartAgent();
  RunWorker(Assignment(kJob, 1000000, {{"log_bytes", "100"}}));
  ASSERT_TRUE(Eventually([&] { return !coordinator_.Log(kJob).empty(); }));
  std::ofstream(folder_ / "secret") << std::string(1 << 20, '$');
  // Waits for some more seconds of training, in which the agent reads the log more than once.
  const auto goes_on = [&] {
    return coordinator_.WaitForStep(kJob, coordinator_.Steps(kJob).back() + 400);
  };
  const std::filesystem::path log = Dir(kJob).log();
  const auto complaints = [&] {
    const std::vector<std::string> parts =
        absl::StrSplit(AgentLog(), "rank 0: its log cannot be read");
    return parts.size() - 1;
  };
  EXPECT_EQ(complaints(), 0u);
  std::filesystem::rename(log, log.string() + ".old");
  std::filesystem::create_symlink(folder_ / "secret", log);
  EXPECT_TRUE(goes_on()) << "a link";
  std::filesystem::remove(log);
  ASSERT_EQ(mkfifo(log.c_str(), 0600), 0);
  EXPECT_TRUE(goes_on()) << "a pipe";
  EXPECT_EQ(complaints(), 1u) << "not with every look";
  std::filesystem::remove(log);
  std::filesystem::rename(log.string() + ".old", log);
  const size_t sent = coordinator_.Log(kJob).size();
  ASSERT_TRUE(Eventually([&] { return coordinator_.Log(kJob).size() > sent; }));
  const std::filesystem::path folder = Dir(kJob).path;
  std::filesystem::create_directory(folder_ / "other");
  std::filesystem::copy_file(folder_ / "secret", folder_ / "other" / "log");
  std::filesystem::rename(folder, folder_ / "moved");
  std::filesystem::create_directory_symlink(folder_ / "other", folder);
  EXPECT_TRUE(goes_on()) << "the whole folder; the journal is open already";
  EXPECT_TRUE(Eventually([&] { return complaints() == 2; }));
  EXPECT_EQ(coordinator_.Log(kJob).find('$'), std::string::npos);
  std::filesystem::remove(folder);
  std::filesystem::rename(folder_ / "moved", folder);
}

TEST_F(AgentFaults, AFolderInWhichNothingWasStartedIsStartedAfterAll) {
  std::filesystem::create_directories(Dir(kJob).path);
  ASSERT_OK(WriteFileAtomically(Dir(kJob).launch(), "half-written by a dead agent"));
  StartAgent();
  coordinator_.Want(Assignment(kJob, 5));
  ASSERT_TRUE(WaitForEnd(kJob));
  EXPECT_EQ(coordinator_.Steps(kJob), OneTo(5));
}

TEST_F(AgentFaults, NotesOnDiskThatAreGarbageCostNothing) {
  StartAgent();
  const ProcessIdentity worker = RunWorker(Assignment(kJob, 1000000));
  ASSERT_TRUE(coordinator_.WaitForStep(kJob, 10));
  KillAgent();
  std::ofstream(Dir(kJob).identity()) << "{\"pid\": 1";
  std::ofstream(Dir(kJob).reported()) << R"({"journal_offset": 3, "next_sequence": 9999999})";
  StartAgent();
  ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  EXPECT_EQ(coordinator_.Observation(kJob).pid(), worker.pid);
  coordinator_.SetStop(kJob, v1::STOP_MODE_GRACEFUL);
  ASSERT_TRUE(WaitForEnd(kJob));
  const std::vector<int64_t> steps = coordinator_.Steps(kJob);
  EXPECT_EQ(steps, OneTo(static_cast<int64_t>(steps.size())));
  EXPECT_TRUE(coordinator_.Records(kJob).back().has_finished());
}

TEST_F(AgentFaults, AProcessThatReusesThePidIsNeverSignalled) {
  // Another program now has the pid that the worker of this run folder had.
  const auto stranger = Spawn({.argv = {"/bin/sleep", "1000"}});
  ASSERT_OK(stranger);
  workers_[kJob] = *stranger;
  ProcessIdentity earlier = *stranger;
  earlier.start_ticks -= 100;
  std::filesystem::create_directories(Dir(kJob).path);
  ASSERT_OK(WriteIdentity(Dir(kJob).identity(), earlier));
  v1::WorkerAssignment assignment = Assignment(kJob, 5);
  assignment.mutable_stop()->set_mode(v1::STOP_MODE_NOW);
  coordinator_.Want(assignment);
  StartAgent();
  ASSERT_TRUE(WaitForEnd(kJob));
  EXPECT_FALSE(coordinator_.Observation(kJob).killed_by_agent());
  coordinator_.Unwant(kJob);
  EXPECT_TRUE(Eventually([&] { return !std::filesystem::exists(Dir(kJob).path); }));
  EXPECT_TRUE(IsAlive(*stranger));
}

TEST_F(AgentFaults, AWorkerThatEndedWithItsMachineIsReportedSo) {
  ProcessIdentity before = *IdentityOf(getpid());
  before.boot_id = "00000000-0000-0000-0000-000000000000";
  std::filesystem::create_directories(Dir(kJob).path);
  ASSERT_OK(WriteIdentity(Dir(kJob).identity(), before));
  coordinator_.Want(Assignment(kJob, 5));
  for (int start = 0; start < 2; ++start) {  // the next agent still knows it
    StartAgent();
    ASSERT_TRUE(WaitForEnd(kJob));
    EXPECT_TRUE(coordinator_.Observation(kJob).machine_restarted());
    EXPECT_EQ(coordinator_.Observation(kJob).exit_code(), -1);
    KillAgent();
  }
}

TEST_F(AgentFaults, WithoutACoordinatorEverythingKeepsRunning) {
  StartAgent();
  const ProcessIdentity worker = RunWorker(Assignment(kJob, 1000000, {{"step_ms", "2"}}));
  for (int outage = 0; outage < 3; ++outage) {
    coordinator_.Stop();
    const auto step = [this] {
      const auto page = ReadStatusPage(Dir(kJob).status());
      return page.ok() ? page->step : 0;
    };
    const int64_t before = step();
    EXPECT_TRUE(Eventually([&] { return step() >= before + 200; })) << "400 ms at least";
    EXPECT_TRUE(IsAlive(worker));
    coordinator_.Start();
    ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  }
  coordinator_.SetStop(kJob, v1::STOP_MODE_GRACEFUL);
  ASSERT_TRUE(WaitForEnd(kJob));
  const std::vector<int64_t> steps = coordinator_.Steps(kJob);
  EXPECT_GE(steps.size(), 600U);
  EXPECT_EQ(steps, OneTo(static_cast<int64_t>(steps.size())));
}

TEST_F(AgentFaults, StartsWithoutACoordinatorAndWaitsForIt) {
  coordinator_.Stop();
  StartAgent();
  absl::SleepFor(absl::Milliseconds(300));
  coordinator_.Start();
  coordinator_.Want(Assignment(kJob, 5));
  EXPECT_TRUE(WaitForEnd(kJob));
}

TEST_F(AgentFaults, AWorkerWhoseCoordinatorHangsIsNotDelayed) {
  StartAgent();
  RunWorker(Assignment(kJob, 200, {{"step_ms", "1"}, {"hold_at_step", "20"}}));
  coordinator_.RefuseRecords(grpc::StatusCode::INTERNAL);
  LetGo(kJob);
  ASSERT_TRUE(coordinator_.WaitFor([&] {
    return coordinator_.ObservationLocked(kJob).step() == 200;
  })) << "the heartbeat still shows the step, though no record is accepted";
  coordinator_.RefuseRecords(grpc::StatusCode::OK);
  ASSERT_TRUE(WaitForEnd(kJob));
  EXPECT_EQ(coordinator_.Steps(kJob), OneTo(200));
}

TEST_F(AgentFaults, ADamagedJournalIsReportedUpToTheDamage) {
  StartAgent();
  coordinator_.RefuseRecords(grpc::StatusCode::UNAVAILABLE);
  coordinator_.Want(Assignment(kJob, 50));
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(Dir(kJob).path / "exit.json"); }));
  std::string journal = *ReadWholeFile(Dir(kJob).journal());
  journal[journal.size() / 2] ^= 0x10;
  KillAgent();
  std::ofstream(Dir(kJob).journal(), std::ios::binary) << journal;
  coordinator_.RefuseRecords(grpc::StatusCode::OK);
  StartAgent();
  ASSERT_TRUE(WaitForEnd(kJob));
  const std::vector<int64_t> steps = coordinator_.Steps(kJob);
  EXPECT_EQ(steps, OneTo(static_cast<int64_t>(steps.size())));
  EXPECT_GT(steps.size(), 10U);
  EXPECT_LT(steps.size(), 40U);
  EXPECT_THAT(AgentLog(), HasSubstr("its later records are lost"));
}

// A worker inherits no descriptor, signal mask or session from the agent, so that the agent's
// terminal, parent or supervisor cannot end it.
TEST_F(AgentFaults, AWorkerIsNotInTheAgentsSession) {
  StartAgent();
  const ProcessIdentity worker = RunWorker(Assignment(kJob, 1000000));
  EXPECT_EQ(getsid(worker.pid), worker.pid);
  EXPECT_NE(getsid(agent_.pid), worker.pid);
}

}  // namespace
}  // namespace nsa
