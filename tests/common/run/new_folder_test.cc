#include "common/run/new_folder.h"

#include <chrono>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/run/atomic_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Writes a folder as a killed process leaves it.
fs::path Leave(const fs::path& folder, std::chrono::minutes ago) {
  fs::create_directories(folder);
  EXPECT_OK(WriteFileAtomically(folder / "part", "x"));
  fs::last_write_time(folder, fs::file_time_type::clock::now() - ago);
  return folder;
}

TEST(NewFolderTest, IsThereWholeOrNotAtAll) {
  const TempDir dir;
  {
    auto folder = NewFolder::Create(dir / "a" / "target");
    ASSERT_OK(folder.status());
    ASSERT_OK(WriteFileAtomically(folder->path() / "file", "x"));
    EXPECT_FALSE(fs::exists(dir / "a" / "target"));
  }
  EXPECT_TRUE(fs::is_empty(dir / "a")) << "it was not published";
  auto folder = NewFolder::Create(dir / "a" / "target");
  ASSERT_OK(folder.status());
  ASSERT_OK(WriteFileAtomically(folder->path() / "file", "x"));
  ASSERT_OK(folder->Publish());
  EXPECT_EQ(*ReadWholeFile(dir / "a" / "target" / "file"), "x");
  EXPECT_THAT(NewFolder::Create(dir / "a" / "target").status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("must be new or empty")));
}

TEST(NewFolderTest, RemovesWhatKilledProcessesLeft) {
  const TempDir dir;
  const auto left = Leave(dir / "monday.nsa-unfinished-abcdef", std::chrono::minutes(61));
  const auto young = Leave(dir / "tuesday.nsa-unfinished-abcdef", std::chrono::minutes(5));
  const auto other = Leave(dir / "mine.tmp-abcdef", std::chrono::minutes(600));
  const auto longer = Leave(dir / "mine.nsa-unfinished-abcdefg", std::chrono::minutes(600));
  const auto in_use = NewFolder::Create(dir / "wednesday");
  ASSERT_OK(in_use.status());
  fs::last_write_time(in_use->path(), fs::file_time_type::clock::now() - std::chrono::minutes(600));
  ASSERT_OK(NewFolder::Create(dir / "thursday").status());
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(young));
  EXPECT_TRUE(fs::exists(other));
  EXPECT_TRUE(fs::exists(longer));
  EXPECT_TRUE(fs::exists(in_use->path())) << "its lock is held";
}

}  // namespace
}  // namespace nsa
