// The current directory, also after it was deleted.
#include "common/base/current_folder.h"

#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

TEST(CurrentFolder, ThatWasDeletedIsAnError) {
  const std::filesystem::path before = std::filesystem::current_path();
  const TempDir dir;
  const std::filesystem::path gone = dir / "gone";
  std::filesystem::create_directory(gone);
  std::filesystem::current_path(gone);
  const auto there = CurrentFolder();
  ASSERT_OK(there);
  EXPECT_EQ(*there, std::filesystem::canonical(gone));
  std::filesystem::remove(gone);
  EXPECT_THAT(CurrentFolder(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "current directory: has been deleted (relative paths start there); change "
                       "to another one"));
  std::filesystem::current_path(before);
}

}  // namespace
}  // namespace nsa
