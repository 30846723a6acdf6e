#include "common/base/why_unreadable.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

TEST(WhyUnreadable, NamesOwnerAndModeOfAFileWithoutPermissionAndElseOnlyTheError) {
  const TempDir folder;
  const auto file = folder / "token";
  std::ofstream(file) << "secret";
  chmod(file.c_str(), 0640);
  const std::string why = WhyUnreadable(file, EACCES);
  EXPECT_THAT(why, HasSubstr("Permission denied; it belongs to "));
  EXPECT_THAT(why, HasSubstr(" with mode 0640, and this process runs as "));
  if (geteuid() == 0) {
    ASSERT_EQ(chown(file.c_str(), 4'000'000, 0), 0);
    EXPECT_THAT(
        WhyUnreadable(file, EACCES),
        HasSubstr("it belongs to user 4000000 with mode 0640, and this process runs as root"));
  }
  EXPECT_EQ(WhyUnreadable(file, EIO), "Input/output error");
  EXPECT_EQ(WhyUnreadable(folder / "none", ENOENT), "No such file or directory");
  EXPECT_EQ(WhyUnreadable(folder / "none", EACCES), "Permission denied") << "a folder is closed";
}

}  // namespace
}  // namespace nsa
