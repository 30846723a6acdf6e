#include "common/base/durable_folder.h"

#include <fstream>

#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

// tests/faults/power_loss_test.cc checks that the names are durable.
TEST(MakeDurableFolder, MakesWhatIsMissingAndTakesWhatIsThere) {
  const TempDir dir;
  EXPECT_OK(MakeDurableFolder(dir / "a/b/c"));
  EXPECT_TRUE(std::filesystem::is_directory(dir / "a/b/c"));
  std::filesystem::create_directory_symlink("a/b", dir / "link");
  EXPECT_OK(MakeDurableFolder(dir / "link/../b/./c/d"));
  EXPECT_TRUE(std::filesystem::is_directory(dir / "a/b/c/d"));
}

TEST(MakeDurableFolder, NamesThePathWhereAFileStandsInItsWay) {
  const TempDir dir;
  std::ofstream(dir / "file").flush();
  EXPECT_THAT(MakeDurableFolder(dir / "file/folder"),
              StatusIs(absl::StatusCode::kFailedPrecondition, testing::HasSubstr("file/folder")));
}

}  // namespace
}  // namespace nsa
