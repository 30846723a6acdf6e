// A fixture that runs our programs in a folder of its own.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/run/atomic_file.h"
#include "common/run/process.h"
#include "tests/testing/paths.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/within.h"

namespace nsa::client {

class ProgramsInFolder : public ::testing::Test {
 protected:
  struct Ran {
    ExitStatus exit;
    std::string said;  // standard output and error
  };

  // Starts a program by its name; its output replaces that of the one before.
  ProcessIdentity Start(std::vector<std::string> words) {
    words[0] = Program(words[0]);
    std::filesystem::remove(dir_ / "log");
    const auto started = Spawn({.argv = std::move(words),
                                .environment = environment_,
                                .working_dir = dir_.path(),
                                .output = dir_ / "log"});
    EXPECT_OK(started);
    return started.ok() ? *started : ProcessIdentity{};
  }

  std::string Said() { return ReadWholeFile(dir_ / "log").value_or(""); }

  Ran Wait(const ProcessIdentity& process) {
    ExitStatus exit;
    EXPECT_TRUE(Within(absl::Seconds(60), [&] {
      const auto reaped = TryReap(process.pid);
      EXPECT_OK(reaped);
      if (!reaped.ok() || !reaped->has_value()) return !reaped.ok();
      exit = **reaped;
      return true;
    }));
    return {exit, Said()};
  }

  Ran Run(const std::vector<std::string>& words) { return Wait(Start(words)); }

  const TempDir dir_;
  std::map<std::string, std::string> environment_ = FilterEnvironment({"PATH"});  // of the programs
};

}  // namespace nsa::client
