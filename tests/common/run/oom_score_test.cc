#include "common/run/oom_score.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace nsa {
namespace {

int ScoreOf(pid_t pid) {
  int score = INT_MIN;
  std::ifstream(absl::StrCat("/proc/", pid, "/oom_score_adj")) >> score;
  return score;
}

TEST(OomScore, IsRaisedAndNeverLowered) {
  const int own = ScoreOf(getpid());
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  ASSERT_OK(RaiseOomScore(child, own - 1));
  EXPECT_EQ(ScoreOf(child), own);
  ASSERT_OK(RaiseOomScore(child, 800));
  EXPECT_EQ(ScoreOf(child), 800);
  ASSERT_OK(RaiseOomScore(child, 100));
  EXPECT_EQ(ScoreOf(child), 800);
  EXPECT_EQ(ScoreOf(getpid()), own);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_THAT(RaiseOomScore(child, 900), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace nsa
