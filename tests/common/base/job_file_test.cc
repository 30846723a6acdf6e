#include "common/base/job_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class JobFileTest : public ::testing::Test {
 protected:
  JobFileTest() {
    fs::create_directories(root_);
    fs::permissions(dir_.path(), fs::perms(0755));
    std::ofstream(root_ / "file") << "content";
    std::ofstream(dir_ / "outside") << "classified";
    fs::create_symlink(root_ / "file", root_ / "link");
    fs::create_symlink(dir_ / "outside", root_ / "out");
    fs::create_directory_symlink(root_, root_ / "self");
    mkfifo((root_ / "pipe").c_str(), 0666);
  }

  // The file with this mode, as nobody may read it.
  absl::Status AsNobody(const fs::path& path) {
    const JobFileScope scope({{}, "nobody"});
    return OpenJobFile(path).status();
  }

  const TempDir dir_;
  const fs::path root_ = dir_ / "root";
};

TEST_F(JobFileTest, OpensRegularFilesOnlyAndNeverWaits) {
  EXPECT_EQ(ReadJobFile(root_ / "file", 7).value_or(""), "content");
  EXPECT_EQ(ReadJobFile(root_ / "link", 7).value_or(""), "content");
  EXPECT_THAT(ReadJobFile(root_ / "file", 6),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("7 bytes (at most 6)")));
  EXPECT_THAT(OpenJobFile(root_ / "none"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(OpenJobFile(root_ / "pipe"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is not a regular file")));
  EXPECT_THAT(OpenJobFile("/dev/zero"), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(OpenJobFile(root_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("folder")));
  EXPECT_FALSE(OpenJobFile(root_ / "link", O_NOFOLLOW).ok());
  EXPECT_OK(OpenJobFile(root_ / "file", O_NOFOLLOW));
  EXPECT_OK(OpenJobFolder(root_));
  EXPECT_FALSE(OpenJobFolder(root_ / "file").ok());
}

TEST_F(JobFileTest, BelowRootsNoLinkIsFollowed) {
  const JobFileScope scope({{dir_ / "other", root_}, ""});
  EXPECT_OK(OpenJobFile(root_ / "file"));
  for (const fs::path& path : {root_ / "link", root_ / "out", root_ / "self/file", dir_ / "outside",
                               root_ / "../outside", fs::path("/etc/passwd")}) {
    EXPECT_THAT(OpenJobFile(path),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("allowed_roots"), Not(HasSubstr("classified")))))
        << path;
  }
  EXPECT_THAT(OpenJobFile(root_ / "pipe"), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(OpenJobFile(root_ / "none"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(OpenJobFolder(root_ / "self"), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_OK(CheckJobPath(root_ / "new/out"));
  EXPECT_FALSE(CheckJobPath(root_ / "self/new").ok());
  EXPECT_FALSE(CheckJobPath(dir_ / "new").ok());
}

TEST_F(JobFileTest, TheRootOfEverythingIsNoLimit) {
  const JobFileScope scope({{"/"}, ""});
  EXPECT_OK(OpenJobFile(root_ / "out"));
  EXPECT_OK(CheckJobPath(dir_ / "new"));
}

TEST_F(JobFileTest, AFolderThatIsHeldOpenIsARootOfItsOwn) {
  const JobFileScope scope({{dir_ / "other"}, ""});
  const Fd held(open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const fs::path name = "/proc/self/fd/" + std::to_string(held.get());
  EXPECT_OK(OpenJobFile(name / "file"));
  EXPECT_OK(OpenJobFolder(name));
  EXPECT_FALSE(OpenJobFile(name / "link").ok());
}

TEST_F(JobFileTest, LimitsAreThoseOfTheThreadAndEndWithTheirScope) {
  {
    const JobFileScope outer({{dir_ / "other"}, ""});
    {
      const JobFileScope inner({{root_}, ""});
      EXPECT_OK(OpenJobFile(root_ / "file"));
    }
    EXPECT_FALSE(OpenJobFile(root_ / "file").ok());
    std::thread([&] { EXPECT_OK(OpenJobFile(root_ / "file")); }).join();
  }
  EXPECT_OK(OpenJobFile(root_ / "link"));
}

// A worker's limits are those of all its threads. In a process of its own.
TEST_F(JobFileTest, AWorkersLimitsAreThoseOfItsProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // threads have been started in this process
  const auto limited = [&] {
    LimitJobFiles({root_});
    bool outside = true;
    std::thread([&] { outside = OpenJobFile(root_ / "out").ok(); }).join();
    _exit(!outside && OpenJobFile(root_ / "file").ok() ? 0 : 1);
  };
  EXPECT_EXIT(limited(), ::testing::ExitedWithCode(0), "");
}

TEST_F(JobFileTest, OpensOnlyWhatTheUserMayRead) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, who may read what nobody may not";
  EXPECT_OK(AsNobody(root_ / "file"));
  fs::permissions(root_ / "file", fs::perms(0640));
  EXPECT_THAT(AsNobody(root_ / "file"),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("Unix user nobody")));
  fs::permissions(root_ / "file", fs::perms(0644));
  fs::permissions(root_, fs::perms(0750));
  EXPECT_THAT(AsNobody(root_ / "file"), StatusIs(absl::StatusCode::kPermissionDenied));
  fs::create_symlink(root_ / "file", dir_ / "by_link");
  EXPECT_THAT(AsNobody(dir_ / "by_link"), StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_EQ(AsNobody(root_ / "none").message(),
            "" + (root_ / "none").string() + ": Permission denied for the Unix user nobody")
      << "the same as of a file that is there";
  EXPECT_THAT(AsNobody(dir_ / "none"), StatusIs(absl::StatusCode::kNotFound));
}

// A job may have 100,000 files in one folder.
TEST_F(JobFileTest, TheFoldersOfManyFilesAreLookedAtOnce) {
  fs::path folder = root_;
  for (int i = 0; i < 60; ++i) folder /= absl::StrCat("level-", i);
  fs::create_directories(folder);
  std::ofstream(folder / "file") << "content";
  const JobFileScope scope({{}, "nobody"});
  const std::clock_t began = std::clock();
  for (int i = 0; i < 20'000; ++i) ASSERT_OK(OpenJobFile(folder / "file"));
  // With a look at each of the sixty folders for each file it takes more than a minute.
  EXPECT_LT(static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC, 10);
}

TEST_F(JobFileTest, AFolderThatChangesMeanwhileIsLookedAtAgain) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, who may enter what nobody may not";
  const JobFileScope scope({{}, "nobody"});
  EXPECT_OK(OpenJobFile(root_ / "file"));
  fs::permissions(root_, fs::perms(0700));
  EXPECT_THAT(OpenJobFile(root_ / "file"), StatusIs(absl::StatusCode::kPermissionDenied));
  fs::permissions(root_, fs::perms(0755));
  EXPECT_OK(OpenJobFile(root_ / "file"));
  // Another folder of the same name.
  fs::create_directories(dir_ / "theirs");
  std::ofstream(dir_ / "theirs" / "file") << "classified";
  fs::permissions(dir_ / "theirs", fs::perms(0700));
  fs::rename(root_, dir_ / "aside");
  fs::rename(dir_ / "theirs", root_);
  EXPECT_THAT(OpenJobFile(root_ / "file"), StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST_F(JobFileTest, NothingIsOpenedOnceNobodyNeedsIt) {
  bool over = false;
  const JobFileScope scope({{root_}, "", [&over] { return over; }});
  EXPECT_OK(OpenJobFile(root_ / "file"));
  EXPECT_FALSE(JobFilesAreOver());
  over = true;
  EXPECT_TRUE(JobFilesAreOver());
  EXPECT_THAT(OpenJobFile(root_ / "file"), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(OpenJobFolder(root_), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(ReadJobFile(root_ / "file", 7), StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(JobFileTest, AUserWhoIsNotKnownReadsWhatOthersMay) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, who may read what others may not";
  const JobFileScope scope({{}, "nobody-of-this-name"});
  EXPECT_OK(OpenJobFile(root_ / "file"));
  fs::permissions(root_ / "file", fs::perms(0660));
  EXPECT_THAT(OpenJobFile(root_ / "file"), StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST(MayUse, TakesTheFirstClassThatFits) {
  EXPECT_TRUE(MayUse(5, {7}, {5, 7, 0400, ""}, 4));
  EXPECT_FALSE(MayUse(5, {7}, {5, 7, 0044, ""}, 4)) << "the owner, whatever others may";
  EXPECT_TRUE(MayUse(5, {7, 8}, {6, 8, 0040, ""}, 4));
  EXPECT_FALSE(MayUse(5, {7, 8}, {6, 8, 0004, ""}, 4)) << "the group, whatever others may";
  EXPECT_TRUE(MayUse(5, {7}, {6, 8, 0001, ""}, 1));
  EXPECT_FALSE(MayUse(5, {7}, {6, 8, 0776, ""}, 1));
}

// An attribute with these entries of tag, rights and id.
std::string Acl(const std::vector<std::array<uint32_t, 3>>& entries) {
  std::string acl("\2\0\0\0", 4);
  for (const auto& [tag, rights, id] : entries) {
    for (const uint32_t half : {tag, rights}) {
      acl += static_cast<char>(half);
      acl += '\0';
    }
    for (int shift = 0; shift < 32; shift += 8) acl += static_cast<char>(id >> shift);
  }
  return acl;
}

// The owner's entry, user 5's, the owning group's, group 9's, the mask and others'.
TEST(MayUse, KnowsAcls) {
  const std::string acl =
      Acl({{1, 7, ~0U}, {2, 1, 5}, {4, 0, ~0U}, {8, 5, 9}, {0x10, 1, ~0U}, {0x20, 4, ~0U}});
  const FileRights file = {1, 8, 0714, acl};
  EXPECT_TRUE(MayUse(1, {}, file, 4));
  EXPECT_TRUE(MayUse(5, {}, file, 1));
  EXPECT_FALSE(MayUse(5, {}, file, 4)) << "not others' right";
  EXPECT_FALSE(MayUse(6, {8}, file, 1)) << "the group's bits of the mode are the mask";
  EXPECT_TRUE(MayUse(6, {8, 9}, file, 1));
  EXPECT_FALSE(MayUse(6, {9}, file, 4)) << "masked";
  EXPECT_TRUE(MayUse(6, {7}, file, 4));
  EXPECT_FALSE(MayUse(6, {7}, file, 1));
}

}  // namespace
}  // namespace nsa
