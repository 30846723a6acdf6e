// The real nsa-agent with fake workers and a fake coordinator, all in the test's own folder.
// Processes that still run at the end are killed.
#pragma once

#include <signal.h>
#include <sys/wait.h>

#include <fstream>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/run/atomic_file.h"
#include "common/run/process.h"
#include "common/run/run_dir.h"
#include "gtest/gtest.h"
#include "tests/testing/fakes/fake_coordinator.h"
#include "tests/testing/paths.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/within.h"

namespace nsa {

class AgentFixture : public ::testing::Test {
 protected:
  using Key = FakeCoordinator::Key;

  AgentFixture() : coordinator_(folder_ / "coordinator.sock") {
    std::ofstream(folder_ / "agent.yaml") << "heartbeat_seconds: 0.05\n"
                                          << "node_name: test-node\n"
                                          << "cpu_slots: 3\n";
  }

  ~AgentFixture() override {
    // First the workers are killed, then the agent.
    for (const auto& [key, identity] : workers_) {
      SignalProcess(identity, SIGKILL).IgnoreError();
      waitpid(identity.pid, nullptr, WNOHANG);
    }
    if (agent_.pid != 0) KillAgent();
    EXPECT_THAT(coordinator_.Complaints(), ::testing::IsEmpty());
  }

  // Starts the agent; its log goes to <folder>/agent.log.
  void StartAgent(std::map<std::string, std::string> environment = {}) {
    environment.try_emplace("PATH", "/usr/bin:/bin");
    for (const char* name : {"ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"}) {
      if (const char* value = std::getenv(name)) environment.try_emplace(name, value);
    }
    const auto agent = Spawn(
        {.argv = AgentCommand(), .environment = environment, .output = folder_ / "agent.log"});
    ASSERT_OK(agent);
    agent_ = *agent;
  }

  std::vector<std::string> AgentCommand() const {
    return {Program("nsa-agent"),   "--config",         (folder_ / "agent.yaml").string(),
            "--state-dir",          StateDir(),         "--coordinator",
            coordinator_.address(), "--worker-program", worker_program_};
  }

  // Sends a signal to the agent, waits for its end and returns how it ended.
  ExitStatus EndAgent(int signal_number) {
    EXPECT_OK(SignalProcess(agent_, signal_number));
    return AwaitAgent();
  }
  void KillAgent() { EXPECT_EQ(EndAgent(SIGKILL).signal, SIGKILL); }

  ExitStatus AwaitAgent() {
    siginfo_t info = {};
    EXPECT_EQ(waitid(P_PID, static_cast<id_t>(agent_.pid), &info, WEXITED | WNOWAIT), 0);
    const auto exit = TryReap(agent_.pid);
    EXPECT_OK(exit);
    agent_ = {};
    return exit.ok() && exit->has_value() ? **exit : ExitStatus{};
  }

  // An assignment for a fake worker. See fake_worker.cc for the labels; they are given without
  // "fake.".
  v1::WorkerAssignment Assignment(const Key& key, int64_t steps,
                                  const std::map<std::string, std::string>& labels = {}) const {
    v1::WorkerAssignment out;
    out.set_job_id(std::get<0>(key));
    out.set_generation(std::get<1>(key));
    out.set_rank(std::get<2>(key));
    out.set_world_size(std::get<2>(key) + 1);
    out.set_ranks_on_node(1);
    v1::TrainSpec* train = out.mutable_spec()->mutable_train();
    train->set_steps(steps);
    train->set_batch_size(2);
    train->set_seq_len(8);
    train->set_out_dir((folder_ / absl::StrCat("out-", std::get<0>(key))).string());
    for (const auto& [name, value] : labels) {
      (*out.mutable_spec()->mutable_labels())["fake." + name] = value;
    }
    return out;
  }

  // Asks for a worker, waits until it runs, and remembers it for the end of the test.
  ProcessIdentity RunWorker(const v1::WorkerAssignment& assignment) {
    const Key key = {assignment.job_id(), assignment.generation(), assignment.rank()};
    coordinator_.Want(assignment);
    EXPECT_TRUE(coordinator_.WaitForState(key, v1::WorkerObservation::STATE_RUNNING));
    const auto identity = IdentityOf(static_cast<pid_t>(coordinator_.Observation(key).pid()));
    EXPECT_OK(identity);
    if (identity.ok()) workers_[key] = *identity;
    return identity.value_or(ProcessIdentity{});
  }

  // Lets a fake worker continue that waits at fake.hold_at_step.
  void LetGo(const Key& key) const {
    const auto out_dir = folder_ / absl::StrCat("out-", std::get<0>(key));
    std::filesystem::create_directories(out_dir);
    std::ofstream(out_dir / "go") << "go";
  }

  bool WaitForEnd(const Key& key) {
    return coordinator_.WaitForState(key, v1::WorkerObservation::STATE_EXITED);
  }

  std::string StateDir() const { return (folder_ / "state").string(); }
  RunDir Dir(const Key& key) const {
    return RunDir::Of(StateDir(), std::get<0>(key), std::get<1>(key), std::get<2>(key));
  }
  std::string AgentLog() const { return ReadWholeFile(folder_ / "agent.log").value_or(""); }

  const Key kJob = {"job-a", 1, 0};

  const TempDir folder_;
  FakeCoordinator coordinator_;
  std::string worker_program_ = Program("fake_worker");
  ProcessIdentity agent_;
  std::map<Key, ProcessIdentity> workers_;
};

// 1, 2, … count.
inline std::vector<int64_t> OneTo(int64_t count) {
  std::vector<int64_t> numbers;
  for (int64_t i = 1; i <= count; ++i) numbers.push_back(i);
  return numbers;
}

// Waits until `holds` is true; returns false after a minute.
inline bool Eventually(const std::function<bool()>& holds) {
  return Within(absl::Seconds(60), holds);
}

}  // namespace nsa
