// Stack dumps of running, stopped and hanging workers, through the agent and by hand.
#include <dirent.h>
#include <sys/ptrace.h>

#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/run/status_page.h"
#include "tests/testing/agent_fixture.h"
#include "tests/testing/paths.h"

namespace nsa {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

struct ProgramResult {
  ExitStatus exit;
  std::string output;  // standard output and error
  absl::Duration took;
};

class StackDump : public AgentFixture {
 protected:
  // Starts a worker and waits until its other threads are waiting: a thread that was just created
  // has no stack to show.
  ProcessIdentity RunWorker(const v1::WorkerAssignment& assignment) {
    const ProcessIdentity worker = AgentFixture::RunWorker(assignment);
    EXPECT_TRUE(Eventually([&] { return OthersSleep(worker.pid); }));
    return worker;
  }

  static bool OthersSleep(pid_t pid) {
    std::error_code error;
    int sleeping = 0;
    for (const auto& task :
         std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"), error)) {
      if (task.path().filename() == absl::StrCat(pid)) continue;
      const std::string stat = ReadWholeFile(task.path() / "stat").value_or("");
      const size_t name_end = stat.rfind(") ");
      if (name_end == std::string::npos || stat[name_end + 2] != 'S') return false;
      ++sleeping;
    }
    return sleeping == 3;
  }

  // Runs `nsa-agent dump` by hand.
  ProgramResult DumpByHand(const ProcessIdentity& process) {
    const auto path = folder_ / "dump.txt";
    std::filesystem::remove(path);
    const absl::Duration start = RealClock().Monotonic();
    const auto child =
        Spawn({.argv = {Program("nsa-agent"), "dump", "--pid", absl::StrCat(process.pid),
                        "--status", Dir(kJob).status().string()},
               .output = path});
    EXPECT_OK(child);
    siginfo_t info = {};
    waitid(P_PID, static_cast<id_t>(child->pid), &info, WEXITED | WNOWAIT);
    const auto exit = TryReap(child->pid);
    return {**exit, *ReadWholeFile(path), RealClock().Monotonic() - start};
  }

  // Requests a dump through the coordinator.
  v1::ReportDumpRequest DumpThroughAgent(const std::string& id, const Key& key) {
    coordinator_.WantDump(id, key);
    EXPECT_TRUE(coordinator_.WaitForDump(id));
    return coordinator_.Dump(id);
  }
};

// Splits a dump into one paragraph for each thread.
std::vector<std::string> ThreadsIn(const std::string& dump) {
  std::vector<std::string> threads;
  for (const absl::string_view paragraph : absl::StrSplit(dump, "\n\n")) {
    if (absl::StartsWith(paragraph, "thread ")) threads.emplace_back(paragraph);
  }
  return threads;
}

// Expects the fake worker's four threads: training, control socket, and two that wait.
void ExpectFakeWorkersStacks(const std::string& dump) {
  const std::vector<std::string> threads = ThreadsIn(dump);
  ASSERT_EQ(threads.size(), 4U) << dump;
  // With ccache's base_dir the paths are relative, else absolute.
  EXPECT_THAT(
      threads[0],
      ContainsRegex("Worker::TrainStep\\(long\\) at [^ ]*tests/testing/fakes/fake_worker.cc:"));
  EXPECT_THAT(threads[1], HasSubstr("common/run/control_socket.cc:"));
  for (size_t i = 2; i < 4; ++i) {
    EXPECT_THAT(threads[i],
                AllOf(HasSubstr("nsa::fake::(anonymous namespace)::WaitForEver() at"),
                      HasSubstr("nsa::fake::(anonymous namespace)::HelperThread() at")));
  }
}

TEST_F(StackDump, OfARunningWorkerNamesTheFunctionsOfAllThreads) {
  StartAgent();
  RunWorker(Assignment(kJob, 1000000, {{"step_ms", "50"}}));
  const v1::ReportDumpRequest dump = DumpThroughAgent("d1", kJob);
  ExpectFakeWorkersStacks(dump.stacks());
  EXPECT_EQ(dump.error(), "");
  EXPECT_EQ(dump.node(), "test-node");
  EXPECT_EQ(dump.pid(), workers_[kJob].pid);
  EXPECT_LT(dump.seconds(), 5);
  EXPECT_THAT(dump.status(), HasSubstr("kernel fake_attention"));
}

TEST_F(StackDump, OfAStoppedWorkerLeavesItStoppedAndItGoesOnAfterwards) {
  StartAgent();
  const ProcessIdentity worker = RunWorker(Assignment(kJob, 1000000, {{"step_ms", "20"}}));
  ASSERT_OK(SignalProcess(worker, SIGSTOP));
  ASSERT_TRUE(Eventually([&] { return ProcessState(worker) == 'T'; }));
  const int64_t stopped_at = ReadStatusPage(Dir(kJob).status())->step;
  for (const char* id : {"d1", "d2"}) {
    const v1::ReportDumpRequest dump = DumpThroughAgent(id, kJob);
    ExpectFakeWorkersStacks(dump.stacks());
    EXPECT_THAT(dump.stacks(), HasSubstr("state T before, T after"));
    EXPECT_LT(dump.seconds(), 5);
    EXPECT_EQ(ProcessState(worker), 'T');
  }
  EXPECT_EQ(ReadStatusPage(Dir(kJob).status())->step, stopped_at);
  ASSERT_OK(SignalProcess(worker, SIGCONT));
  ASSERT_TRUE(coordinator_.WaitForStep(kJob, stopped_at + 3));
}

TEST_F(StackDump, OfAHangingWorkerShowsTheCollectiveItWaitsIn) {
  StartAgent();
  RunWorker(Assignment(kJob, 100, {{"hang_at_step", "3"}}));
  ASSERT_TRUE(
      Eventually([&] { return ReadStatusPage(Dir(kJob).status())->collective == "all_reduce"; }));
  const v1::ReportDumpRequest dump = DumpThroughAgent("d1", kJob);
  EXPECT_THAT(dump.stacks(), HasSubstr("Worker::HangInCollective() at"));
  EXPECT_THAT(dump.status(), HasSubstr("step 2 micro 0 reduce layer 3 waiting in all_reduce #1"));
}

TEST_F(StackDump, OfSeveralRanksAreTakenAtTheSameTime) {
  StartAgent();
  std::vector<Key> keys;
  for (int i = 0; i < 6; ++i) {
    keys.push_back({absl::StrCat("job-", i), 1, 0});
    RunWorker(Assignment(keys.back(), 1000000));
  }
  const absl::Duration start = RealClock().Monotonic();
  for (size_t i = 0; i < keys.size(); ++i) coordinator_.WantDump(absl::StrCat("d", i), keys[i]);
  for (size_t i = 0; i < keys.size(); ++i) {
    ASSERT_TRUE(coordinator_.WaitForDump(absl::StrCat("d", i)));
    EXPECT_EQ(ThreadsIn(coordinator_.Dump(absl::StrCat("d", i)).stacks()).size(), 4U);
  }
  EXPECT_LT(RealClock().Monotonic() - start, absl::Seconds(5));
}

TEST_F(StackDump, OfAWorkerThatIsNotThereSaysSo) {
  StartAgent();
  const v1::ReportDumpRequest none = DumpThroughAgent("d1", {"nobody", 1, 0});
  EXPECT_THAT(none.error(), HasSubstr("no such worker"));
  coordinator_.Want(Assignment(kJob, 3));
  ASSERT_TRUE(WaitForEnd(kJob));
  const v1::ReportDumpRequest ended = DumpThroughAgent("d2", kJob);
  EXPECT_THAT(ended.error(), HasSubstr("no such worker runs"));
  EXPECT_THAT(ended.status(), HasSubstr("step 3")) << "the last page is still worth reading";
}

TEST_F(StackDump, ByHandWritesToStandardOutput) {
  StartAgent();
  const ProcessIdentity worker = RunWorker(Assignment(kJob, 1000000, {{"step_ms", "50"}}));
  const ProgramResult dump = DumpByHand(worker);
  EXPECT_EQ(dump.exit.code, 0);
  ExpectFakeWorkersStacks(dump.output);
  EXPECT_THAT(dump.output, HasSubstr("rank 0/1 gen 1 pid"));
  EXPECT_LT(dump.took, absl::Seconds(5));
}

TEST_F(StackDump, OfAProcessThatMayNotBeTracedSaysWhyAndWhatTheKernelKnows) {
  StartAgent();
  const ProcessIdentity worker = RunWorker(Assignment(kJob, 1000000, {{"step_ms", "50"}}));
  // A process can have only one tracer; here it is this test.
  ASSERT_EQ(ptrace(PTRACE_SEIZE, worker.pid, nullptr, nullptr), 0);
  const ProgramResult dump = DumpByHand(worker);
  ASSERT_EQ(ptrace(PTRACE_INTERRUPT, worker.pid, nullptr, nullptr), 0);
  ASSERT_EQ(waitpid(worker.pid, nullptr, __WALL), worker.pid);
  ASSERT_EQ(ptrace(PTRACE_DETACH, worker.pid, nullptr, nullptr), 0);
  EXPECT_EQ(dump.exit.code, 1);
  EXPECT_THAT(dump.output, AllOf(HasSubstr("no stack: ptrace: not permitted"), HasSubstr("wchan:"),
                                 HasSubstr("syscall:"), HasSubstr("stack:")));
  EXPECT_THAT(ThreadsIn(dump.output)[2], HasSubstr("HelperThread")) << "the others are dumped";
}

TEST_F(StackDump, KilledAtAnyMomentItLeavesTheWorkerRunning) {
  StartAgent();
  const ProcessIdentity worker = RunWorker(Assignment(kJob, 1000000, {{"step_ms", "1"}}));
  std::mt19937 random(7);
  for (int kill = 0; kill < 60; ++kill) {
    const auto dump =
        Spawn({.argv = {Program("nsa-agent"), "dump", "--pid", absl::StrCat(worker.pid)}});
    ASSERT_OK(dump);
    absl::SleepFor(absl::Microseconds(std::uniform_int_distribution<int>(0, 25000)(random)));
    SignalProcess(*dump, SIGKILL).IgnoreError();
    waitpid(dump->pid, nullptr, 0);
  }
  const int64_t step = ReadStatusPage(Dir(kJob).status())->step;
  ASSERT_TRUE(coordinator_.WaitForStep(kJob, step + 50));
  const std::string page_of_threads = *ReadWholeFile(absl::StrCat("/proc/", worker.pid, "/status"));
  EXPECT_THAT(page_of_threads,
              AllOf(HasSubstr("TracerPid:\t0\n"), ::testing::Not(HasSubstr("T (stopped)"))));
  ExpectFakeWorkersStacks(DumpByHand(worker).output);
}

TEST_F(StackDump, TwentyInARowDoNotStopTheStepsOfAWorker) {
  StartAgent();
  const ProcessIdentity worker = RunWorker(Assignment(kJob, 1000000, {{"step_ms", "2"}}));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(DumpByHand(worker).exit.code, 0);
  coordinator_.SetStop(kJob, v1::STOP_MODE_GRACEFUL);
  ASSERT_TRUE(WaitForEnd(kJob));
  const std::vector<int64_t> steps = coordinator_.Steps(kJob);
  EXPECT_EQ(steps, OneTo(static_cast<int64_t>(steps.size())));
  EXPECT_EQ(coordinator_.Observation(kJob).exit_code(), 0);
}

}  // namespace
}  // namespace nsa
