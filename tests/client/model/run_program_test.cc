#include "client/commands/model/run_program.h"

#include <signal.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "common/run/atomic_file.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::client {
namespace {

using ::testing::HasSubstr;

std::string ScriptOf(const TempDir& dir, const std::string& script) {
  const std::string path = dir / "program";
  std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

TEST(RunInForeground, PassesTheWordsAndReturnsTheExitCode) {
  const TempDir dir;
  Interrupt interrupt;
  const std::string out = dir / "out";
  const auto exit = RunInForeground(
      {ScriptOf(dir, "printf '%s|' \"$@\" > " + out + "; exit 3"), "a b", "", "--c=\"'$"},
      &interrupt);
  ASSERT_OK(exit);
  EXPECT_EQ(exit->code, 3);
  EXPECT_EQ(*ReadWholeFile(out), "a b||--c=\"'$|");
}

TEST(RunInForeground, SignalsHaveTheirDefaultAction) {
  const TempDir dir;
  Interrupt interrupt;
  sigset_t term, before;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &term, &before);  // as nsactl's listener does
  const auto exit = RunInForeground({ScriptOf(dir, "kill -TERM $$; exit 0")}, &interrupt);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ASSERT_OK(exit);
  EXPECT_EQ(exit->signal, SIGTERM);
}

TEST(RunInForeground, EndsTheProgramWhenItIsInterrupted) {
  const TempDir dir;
  Interrupt interrupt;
  std::thread raise([&] {
    while (!std::filesystem::exists(dir / "started")) std::this_thread::yield();
    interrupt.Raise();
  });
  const auto exit = RunInForeground(
      {ScriptOf(dir, "touch " + std::string(dir / "started") + "; exec sleep 600")}, &interrupt);
  raise.join();
  ASSERT_OK(exit);
  EXPECT_EQ(exit->signal, SIGTERM);
}

TEST(RunInForeground, NamesAProgramThatIsNotThere) {
  const TempDir dir;
  Interrupt interrupt;
  EXPECT_THAT(RunInForeground({dir / "absent"}, &interrupt),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("absent")));
}

}  // namespace
}  // namespace nsa::client
