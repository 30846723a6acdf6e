#include "server/act/checkpoints.h"

#include <filesystem>
#include <fstream>

#include "common/base/job_file.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::server {
namespace {

// Checkpoints 1 to `count` of an out_dir, each with this state.json.
void MakeCheckpoints(const std::filesystem::path& out_dir, int count, const std::string& state) {
  std::ofstream(out_dir / "state.json") << state;
  for (int step = 1; step <= count; ++step) {
    const std::filesystem::path path = CheckpointsDir(out_dir) / CheckpointName(step);
    std::filesystem::create_directories(path);
    std::filesystem::create_hard_link(out_dir / "state.json", path / "state.json");
  }
}

TEST(NewestCheckpoints, AreReadAndTheOthersAreNot) {
  const TempDir dir;
  MakeCheckpoints(dir.path(), 30, "{");
  const auto newest = NewestCheckpoints(dir.path(), 10);
  ASSERT_OK(newest.status());
  ASSERT_EQ(newest->size(), 10u);
  EXPECT_EQ(newest->front().step(), 21);
  EXPECT_EQ(newest->back().step(), 30);
  EXPECT_THAT(newest->back().error(), ::testing::HasSubstr("is not JSON of a checkpoint"));
}

// Of 3,000 files of 1 MiB none is read once nobody waits for the list.
TEST(NewestCheckpoints, EndWhenNobodyNeedsThemAnyMore) {
  const TempDir dir;
  MakeCheckpoints(dir.path(), 3'000, std::string(1 << 20, ' '));
  int asked = 0;
  int most = 100;
  JobFileLimits limits;
  limits.over = [&] { return ++asked > most; };
  const JobFileScope scope(limits);
  EXPECT_THAT(NewestCheckpoints(dir.path(), 3'000).status(),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_LE(asked, most + 2) << "while it lists";
  most = 3'100;
  asked = 0;
  EXPECT_THAT(NewestCheckpoints(dir.path(), 3'000).status(),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_LE(asked, most + 2) << "while it reads";
  asked = 0;
  v1::ListCheckpointsRequest request;
  EXPECT_THAT(CheckpointsOf(dir.path(), request).status(), StatusIs(absl::StatusCode::kCancelled));
}

}  // namespace
}  // namespace nsa::server
