// The agent's state folder, moved or copied while workers run.
#include "gmock/gmock.h"
#include "tests/testing/agent_fixture.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

class MovedFolderTest : public AgentFixture {
 protected:
  // Makes this folder the agent's.
  void Use(const std::filesystem::path& state) { state_ = state; }
  void StartThere() {
    const auto agent =
        Spawn({.argv = {Program("nsa-agent"), "--config", (folder_ / "agent.yaml").string(),
                        "--state-dir", state_.string(), "--coordinator", coordinator_.address(),
                        "--worker-program", worker_program_},
               .environment = FilterEnvironment({"PATH", "ASAN_OPTIONS"}),
               .output = folder_ / "agent.log"});
    ASSERT_OK(agent);
    agent_ = *agent;
  }
  void Copy(const std::filesystem::path& to) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(StateDir())) {
      const auto target = to / std::filesystem::relative(entry.path(), StateDir());
      if (entry.is_directory()) std::filesystem::create_directories(target);
      if (entry.is_regular_file()) {
        std::filesystem::create_directories(target.parent_path());
        std::filesystem::copy_file(entry.path(), target);
      }
    }
  }
  bool SaysEnded() {
    return coordinator_.WaitFor([&] {
      return coordinator_.ObservationLocked(kJob).state() == v1::WorkerObservation::STATE_EXITED;
    });
  }

  std::filesystem::path state_;
};

TEST_F(MovedFolderTest, AMovedFolderKeepsItsWorkers) {
  StartAgent();
  const ProcessIdentity worker = RunWorker(Assignment(kJob, 1000000));
  KillAgent();
  std::filesystem::rename(StateDir(), folder_ / "moved");
  Use(folder_ / "moved");
  StartThere();
  ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  EXPECT_EQ(coordinator_.Observation(kJob).pid(), worker.pid);
  const int64_t step = coordinator_.Observation(kJob).step();
  EXPECT_TRUE(coordinator_.WaitForStep(kJob, step + 1)) << "its records arrive";
}

TEST_F(MovedFolderTest, ACopyLeavesTheWorkersOfTheOriginalAlone) {
  StartAgent();
  const ProcessIdentity worker = RunWorker(Assignment(kJob, 1000000));
  Copy(folder_ / "copy");
  KillAgent();  // its heartbeats would be mixed up with those of the other
  Use(folder_ / "copy");
  StartThere();
  EXPECT_TRUE(SaysEnded());
  coordinator_.SetStop(kJob, v1::STOP_MODE_NOW);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  EXPECT_TRUE(IsAlive(worker));
  EXPECT_THAT(AgentLog(), HasSubstr("(this state folder is a copy of it): left alone"));
  KillAgent();
  StartThere();
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(coordinator_.WaitForHeartbeat());
  EXPECT_TRUE(IsAlive(worker)) << "nor does the next agent of the copy touch it";
}

TEST_F(MovedFolderTest, WhereTheOriginalIsGoneItsWorkersEndWithACheckpoint) {
  StartAgent();
  const ProcessIdentity worker = RunWorker(Assignment(kJob, 1000000));
  KillAgent();
  Copy(folder_ / "copy");  // as mv does to another disk
  std::filesystem::remove_all(StateDir());
  Use(folder_ / "copy");
  StartThere();
  EXPECT_TRUE(Eventually([&] { return !IsAlive(worker); }));
  EXPECT_TRUE(SaysEnded());
  EXPECT_EQ(coordinator_.Observation(kJob).exit_signal(), 0);
}

}  // namespace
}  // namespace nsa
