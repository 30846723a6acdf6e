#include "client/connect/local/local_worker.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "nsa/v1/data.pb.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::client {
namespace {

// `nsactl admin backup` shows this for a coordinator that was killed before it wrote anything.
TEST(RunProgram, HowItEndedIsSaidInWords) {
  const TempDir dir;
  const std::string program = dir / "worker";
  const auto end_of = [&](const std::string& script) {
    std::ofstream(program) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    Interrupt interrupt;
    const auto finished = RunProgram(program, {}, &interrupt);
    EXPECT_OK(finished);
    return finished.ok() ? EndOf(program, finished->exit) : "";
  };
  EXPECT_EQ(end_of("kill -KILL $$"), "worker was ended by signal 9");
  EXPECT_EQ(end_of("exit 3"), "worker ended with exit code 3");
}

TEST(AskWorker, WhatWasToldIsNotInTheErrorAgain) {
  const TempDir dir;
  const std::string program = dir / "worker";
  std::ofstream(program) << "#!/bin/sh\necho working\necho worker: data.path: none\nexit 2\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  Interrupt interrupt;
  v1::DataInspection answer;
  std::vector<std::string> told;
  EXPECT_THAT(AskWorker(program, {}, &interrupt, &answer,
                        [&](const std::string& line) { told.push_back(line); }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "worker: data.path: none (worker ended with exit code 2)"));
  EXPECT_THAT(told, testing::ElementsAre("working"));
}

TEST(RunWorker, AnErrorHasWhatWasWrittenAndHowItEnded) {
  const TempDir dir;
  const std::string program = dir / "worker";
  std::ofstream(program) << "#!/bin/sh\necho data.path: none\nkill -KILL $$\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  Interrupt interrupt;
  EXPECT_THAT(
      RunWorker(program, {}, &interrupt),
      StatusIs(absl::StatusCode::kInternal, "data.path: none (worker was ended by signal 9)"));
}

}  // namespace
}  // namespace nsa::client
