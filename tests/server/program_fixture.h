// nsa-coordinator as a program, for tests: started, asked and waited for.
#pragma once

#include <signal.h>
#include <sys/wait.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/rpc.h"
#include "common/run/process.h"
#include "gtest/gtest.h"
#include "nsa/v1/coordinator.grpc.pb.h"
#include "tests/testing/paths.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa {

class ProgramTest : public ::testing::Test {
 protected:
  ~ProgramTest() override {
    for (const pid_t pid : started_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }

  // Starts the program with its own state folder, without agent, and without HTTP unless metrics_
  // is set.
  pid_t Start(const std::string& state, std::vector<std::string> more = {},
              std::vector<std::string> before = {}) {
    const std::string config = (folder_ / "coordinator.yaml").string();
    std::ofstream(config) << config_;
    SpawnOptions options;
    options.argv = std::move(before);
    options.argv.insert(options.argv.end(),
                        {Program("nsa-coordinator"), "--config", config, "--state-dir",
                         (folder_ / state).string(), "--metrics", metrics_});
    options.argv.insert(options.argv.end(), more.begin(), more.end());
    options.environment = FilterEnvironment({"PATH", "HOME", "ASAN_OPTIONS", "TSAN_OPTIONS"});
    options.output = folder_ / "output";
    const auto identity = Spawn(options);
    EXPECT_OK(identity.status());
    started_.push_back(identity->pid);
    return identity->pid;
  }
  int WaitForExit(pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    std::erase(started_, pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1'000 + WTERMSIG(status);
  }
  std::string Output() {
    std::stringstream text;
    text << std::ifstream(folder_ / "output").rdbuf();
    return text.str();
  }
  // Waits for the coordinator of this state folder for ten seconds.
  bool Answers(const std::string& state) {
    const auto channel =
        OpenChannel(absl::StrCat("unix:", (folder_ / state / "coordinator.sock").string()), {});
    const auto stub = v1::CoordinatorService::NewStub(*channel);
    const auto context = MakeContext(absl::Seconds(10), "");
    context->set_wait_for_ready(true);
    v1::GetVersionResponse version;
    return stub->GetVersion(context.get(), {}, &version).ok();
  }
  // The TCP address that the coordinator named last in its log.
  std::string TcpAddress() {
    const std::string output = Output();
    const size_t named = output.rfind(" and 127.0.0.");
    if (named == std::string::npos) return "";
    const size_t begin = named + 5;
    return output.substr(begin, output.find(',', begin) - begin);
  }

  TempDir folder_;
  std::string config_ = "local_agent: false\n";
  std::string metrics_;  // address
  std::vector<pid_t> started_;
};

}  // namespace nsa
