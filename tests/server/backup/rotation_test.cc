// Folders of backups.
#include "server/backup/rotation.h"

#include <fstream>

#include "gmock/gmock.h"
#include "tests/server/store/job_store_fixture.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RotationTest : public JobStoreFixture {
 protected:
  absl::StatusOr<Rotated> Rotate(int keep, int day) {
    // 2026-09-21 14:13:20 UTC
    return BackUpAndRotate(folder_.path(), backups_.path(), keep,
                           absl::FromUnixSeconds(1'790'000'000) + absl::Hours(24 * day));
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(backups_.path())) {
      names.push_back(entry.path().filename());
    }
    std::ranges::sort(names);
    return names;
  }

  TempDir backups_;
};

TEST_F(RotationTest, KeepsTheNewestAndTouchesNothingElse) {
  Insert("a");
  fs::create_directories(backups_ / "nsa-20200101T000000Z");
  fs::create_directories(backups_ / "by-hand");
  std::ofstream(backups_ / "by-hand/backup.json") << "{}";
  fs::create_directory_symlink(folder_.path(), backups_ / "nsa-20200102T000000Z");
  for (int day = 0; day < 3; ++day) {
    const auto rotated = Rotate(2, day);
    ASSERT_OK(rotated.status());
    EXPECT_EQ(rotated->size.files, 1);
    if (day == 2) {
      EXPECT_THAT(rotated->removed, ElementsAre("nsa-20260921T141320Z"));
    } else {
      EXPECT_THAT(rotated->removed, IsEmpty());
    }
  }
  EXPECT_THAT(Names(), ElementsAre("by-hand", "nsa-20200101T000000Z", "nsa-20200102T000000Z",
                                   "nsa-20260922T141320Z", "nsa-20260923T141320Z"))
      << "what has no manifest, is a link, or has another name stays";
  EXPECT_TRUE(fs::exists(folder_ / "jobs.sqlite"));
}

TEST_F(RotationTest, ABackupThatFailsDeletesNothing) {
  Insert("a");
  ASSERT_OK(Rotate(1, 0).status());
  fs::remove(folder_ / "jobs.sqlite");
  EXPECT_THAT(Rotate(1, 1), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Names(), ElementsAre("nsa-20260921T141320Z"));
  EXPECT_THAT(Rotate(0, 2), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("keep: 0")));
  EXPECT_THAT(BackUpAndRotate(folder_.path(), backups_ / "none", 1, absl::UnixEpoch()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("is no folder")));
}

TEST_F(RotationTest, VerifySaysWhatABackupIsOrWhatIsDamaged) {
  Insert("a");
  const auto rotated = Rotate(1, 0);
  ASSERT_OK(rotated.status());
  const auto verified = Verify(rotated->backup);
  ASSERT_OK(verified.status());
  EXPECT_EQ(verified->time, absl::FromUnixSeconds(1'790'000'000));
  EXPECT_EQ(verified->size.files, 1);
  fs::resize_file(rotated->backup / "jobs.sqlite", 512);
  EXPECT_THAT(Verify(rotated->backup),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("jobs.sqlite")));
  EXPECT_THAT(Verify(backups_ / "none"), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace nsa::server
