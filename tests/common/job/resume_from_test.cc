#include "common/job/resume_from.h"

#include <gtest/gtest.h>

namespace nsa {
namespace {

TEST(ResumeFrom, ARestartGoesOnWithItsOwnCheckpointsWhateverTheJobSays) {
  v1::RestartSpec restart;
  for (const bool named : {true, false}) {
    restart.set_resume(named ? "/out/other" : "never");
    const ResumeFrom said = named ? ResumeFrom::kNamed : ResumeFrom::kNever;
    EXPECT_EQ(NamesCheckpoint(restart), named);
    EXPECT_EQ(ResumeFromOf(restart, /*restarted=*/true, /*has_own_checkpoints=*/true),
              ResumeFrom::kOwn);
    EXPECT_EQ(ResumeFromOf(restart, true, false), said) << "it ended before its first checkpoint";
    EXPECT_EQ(ResumeFromOf(restart, false, true), said);
    EXPECT_EQ(ResumeFromOf(restart, false, false), said);
  }
  for (const char* word : {"", "auto"}) {
    restart.set_resume(word);
    EXPECT_FALSE(NamesCheckpoint(restart));
    EXPECT_EQ(ResumeFromOf(restart, false, true), ResumeFrom::kOwn);
  }
}

}  // namespace
}  // namespace nsa
