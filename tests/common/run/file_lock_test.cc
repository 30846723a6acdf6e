#include "common/run/file_lock.h"

#include <errno.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/run/atomic_file.h"
#include "common/run/process.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

class FileLockTest : public ::testing::Test {
 protected:
  absl::Status TakeAgain() { return FileLock::Take(path_).status(); }
  TempDir dir_;
  const std::filesystem::path path_ = dir_ / "some.lock";
};

TEST_F(FileLockTest, ASecondHolderIsToldWhoTheFirstIs) {
  const auto first = FileLock::Take(path_, "generation 3");
  ASSERT_OK(first);
  char host[256] = {};
  ASSERT_EQ(gethostname(host, sizeof(host) - 1), 0);
  EXPECT_THAT(TakeAgain(),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       absl::StrCat("process ", getpid(), " (", program_invocation_short_name,
                                    ") on ", host, ", generation 3")));
}

TEST_F(FileLockTest, TheFileIsAlsoTheHoldersIdentity) {
  const auto lock = FileLock::Take(path_);
  ASSERT_OK(lock);
  const auto holder = ReadIdentity(path_);
  ASSERT_OK(holder);
  EXPECT_EQ(*holder, *IdentityOf(getpid()));
  const auto json = nlohmann::json::parse(*ReadWholeFile(path_));
  EXPECT_EQ(json["program"], program_invocation_short_name);
  EXPECT_FALSE(json.contains("detail"));
}

TEST_F(FileLockTest, SaysWhereItWasTakenAndWhetherThisIsACopy) {
  EXPECT_EQ(OriginOfLock(path_).folder, "");
  const auto lock = FileLock::Take(path_);
  ASSERT_OK(lock);
  EXPECT_EQ(OriginOfLock(path_).folder, dir_.path());
  EXPECT_FALSE(OriginOfLock(path_).copied);
  std::filesystem::copy_file(path_, dir_ / "copy.lock");
  EXPECT_EQ(OriginOfLock(dir_ / "copy.lock").folder, dir_.path());
  EXPECT_TRUE(OriginOfLock(dir_ / "copy.lock").copied);
  std::filesystem::rename(path_, dir_ / "moved.lock");
  EXPECT_FALSE(OriginOfLock(dir_ / "moved.lock").copied);
  ASSERT_OK(
      WriteFileAtomically(dir_ / "older.lock", R"({"pid": 1, "start_ticks": 2, "boot_id": "b"})"));
  EXPECT_EQ(OriginOfLock(dir_ / "older.lock").folder, "") << "of an earlier version";
}

TEST_F(FileLockTest, IsFreeAgainWhenItsHolderIsGone) {
  { const auto first = FileLock::Take(path_, "a long detail that the next one does not have"); }
  ASSERT_OK(FileLock::Take(path_));
  EXPECT_FALSE(nlohmann::json::parse(*ReadWholeFile(path_)).contains("detail"));
}

TEST_F(FileLockTest, WhateverIsInTheFileIsShownOnOneLine) {
  const auto first = FileLock::Take(path_);
  ASSERT_OK(first);
  const struct {
    const char* content;
    const char* shown;
  } cases[] = {
      {"4711\n", "4711"},  // written by an older coordinator
      {"process 12 on vm3, generation 2\n", "process 12 on vm3, generation 2"},
      {"\xff\xfe\nmore", "\\xff\\xfe"},
      {"", "a process that has not written its name"},
      {"{\"pid\": \"x\"}", "{\\\"pid\\\": \\\"x\\\"}"},
      {"{\"pid\": 7, \"start_ticks\": 5, \"boot_id\": \"b\"}", "process 7 (?) on ?"},
  };
  for (const auto& [content, shown] : cases) {
    std::ofstream(path_) << content;
    EXPECT_THAT(TakeAgain(), StatusIs(absl::StatusCode::kAlreadyExists, shown)) << content;
  }
}

TEST_F(FileLockTest, FollowsNoLink) {
  std::filesystem::create_symlink(dir_ / "elsewhere", path_);
  EXPECT_FALSE(TakeAgain().ok());
  EXPECT_FALSE(std::filesystem::exists(dir_ / "elsewhere"));
}

}  // namespace
}  // namespace nsa
