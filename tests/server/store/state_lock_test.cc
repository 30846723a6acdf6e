#include "server/store/state_lock.h"

#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::server {
namespace {

using ::testing::HasSubstr;

TEST(StateLock, RefusesASecondHolderAndNamesTheFirst) {
  TempDir folder;
  const auto first = LockStateDir(folder / "state");
  ASSERT_OK(first.status());
  EXPECT_THAT(LockStateDir(folder / "state").status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr(absl::StrCat("process ", getpid()))));
  EXPECT_EQ(std::filesystem::status(folder / "state").permissions(),
            std::filesystem::perms::owner_all);
}

TEST(StateLock, IsFreeAgainWhenItsHolderIsGone) {
  TempDir folder;
  { const auto first = LockStateDir(folder.path()); }
  EXPECT_OK(LockStateDir(folder.path()).status());
}

}  // namespace
}  // namespace nsa::server
