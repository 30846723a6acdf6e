// Files that commands write are whole, or what they were before.
#include "common/run/output_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/fd.h"
#include "common/run/atomic_file.h"
#include "tests/testing/file_size_limit.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class OutputFileTest : public testing::Test {
 protected:
  std::string Text(const std::string& name) const {
    std::ifstream file(dir_ / name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir_.path())) {
      names.push_back(entry.path().filename().string());
    }
    std::ranges::sort(names);
    return names;
  }
  mode_t ModeOf(const std::string& name) const {
    struct stat info {};
    EXPECT_EQ(stat((dir_ / name).c_str(), &info), 0);
    return info.st_mode & 07777;
  }

  const TempDir dir_;
};

TEST_F(OutputFileTest, ANewFileHasTheModeOfTheUmaskAndAnOldOneKeepsItsOwn) {
  const mode_t old = umask(027);
  EXPECT_OK(WriteOutputFile(dir_ / "new", "a"));
  umask(old);
  EXPECT_EQ(ModeOf("new"), 0640);
  fs::permissions(dir_ / "new", fs::perms(0604));
  EXPECT_OK(WriteOutputFile(dir_ / "new", "b"));
  EXPECT_EQ(Text("new"), "b");
  EXPECT_EQ(ModeOf("new"), 0604);
  EXPECT_THAT(Names(), ElementsAre("new"));
}

TEST_F(OutputFileTest, WithoutRoomTheOldFileStaysAndNoNewOneIsMade) {
  std::ofstream(dir_ / "old") << "what was there";
  absl::Status replaced, made;
  {
    const FileSizeLimit limit(1000);
    replaced = WriteOutputFile(dir_ / "old", std::string(5000, 'x'));
    made = WriteOutputFile(dir_ / "new", std::string(5000, 'x'));
  }
  EXPECT_THAT(replaced,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(StartsWith((dir_ / "old").string() + ": cannot be written: "),
                             HasSubstr("File too large"),
                             EndsWith("; free space there, or name a place on another disk"))));
  EXPECT_THAT(made, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(Text("old"), "what was there");
  EXPECT_THAT(Names(), ElementsAre("old"));
}

TEST_F(OutputFileTest, WhatIsNotPublishedIsNotThere) {
  {
    auto file = OutputFile::Create(dir_ / "a");
    ASSERT_OK(file);
    ASSERT_OK(file->Append("one"));
    OutputFile moved = *std::move(file);
    ASSERT_OK(moved.Append("two"));
    EXPECT_EQ(moved.size(), 6);
  }
  EXPECT_THAT(Names(), ElementsAre());
}

TEST_F(OutputFileTest, ALinkIsFollowed) {
  std::ofstream(dir_ / "target") << "old";
  fs::create_symlink("target", dir_ / "link");
  fs::create_symlink("made", dir_ / "dangling");
  EXPECT_OK(WriteOutputFile(dir_ / "link", "new"));
  EXPECT_OK(WriteOutputFile(dir_ / "dangling", "new"));
  EXPECT_TRUE(fs::is_symlink(dir_ / "link"));
  EXPECT_EQ(Text("target"), "new");
  EXPECT_EQ(Text("made"), "new");
}

TEST_F(OutputFileTest, ADeviceIsWrittenInPlace) {
  EXPECT_OK(WriteOutputFile("/dev/null", "text"));
  EXPECT_THAT(WriteOutputFile("/dev/full", "text"),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("No space left")));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

// As /dev/stdout does when the output of a command is read by another.
TEST_F(OutputFileTest, ALinkToAPipeIsWrittenInPlace) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  const Fd from(ends[0]);
  {
    const Fd to(ends[1]);
    EXPECT_OK(WriteOutputFile(absl::StrCat("/proc/self/fd/", to.get()), "text"));
  }
  const auto read = ReadWholeFile(from.get(), "a pipe");
  ASSERT_OK(read);
  EXPECT_EQ(*read, "text");
}

TEST_F(OutputFileTest, ANameMayBeAsLongAsTheFileSystemsNames) {
  const std::string name(255, 'n');
  EXPECT_OK(WriteOutputFile(dir_ / name, "a"));
  EXPECT_OK(WriteOutputFile(dir_ / name, "b"));
  EXPECT_EQ(Text(name), "b");
  EXPECT_THAT(Names(), ElementsAre(name));
}

TEST_F(OutputFileTest, NothingIsLeftOfAProcessThatIsKilled) {
  const pid_t child = fork();
  if (child == 0) {
    auto file = OutputFile::Create(dir_ / "a");
    if (file.ok()) file->Append("part").IgnoreError();
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_THAT(Names(), ElementsAre());
}

// As a container has a single file of its host.
TEST_F(OutputFileTest, AFileThatIsAMountPointKeepsItsPlace) {
  std::ofstream(dir_ / "source") << "what was there before, longer";
  std::ofstream(dir_ / "mounted") << "below";
  std::thread([&] {  // with mounts of its own
    const std::string mounted = (dir_ / "mounted").string();
    if (unshare(CLONE_NEWNS) != 0 ||
        mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount((dir_ / "source").c_str(), mounted.c_str(), nullptr, MS_BIND, nullptr) != 0) {
      EXPECT_EQ(errno, EPERM);
      return;
    }
    EXPECT_OK(WriteOutputFile(mounted, "new"));
  })
      .join();
  if (Text("source") == "what was there before, longer") GTEST_SKIP() << "may not mount here";
  EXPECT_EQ(Text("source"), "new");
  EXPECT_EQ(Text("mounted"), "below");
  EXPECT_THAT(Names(), ElementsAre("mounted", "source"));
}

TEST_F(OutputFileTest, AFolderThatIsNotThereIsNamed) {
  EXPECT_THAT(WriteOutputFile(dir_ / "none" / "a", "text"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none/a: cannot be written")));
  EXPECT_FALSE(WriteOutputFile(dir_.path(), "text").ok());
}

TEST(FlushStandardOutput, SaysWhenItsDiskIsFull) {
  EXPECT_OK(FlushStandardOutput());
  const Fd before(dup(STDOUT_FILENO));
  const Fd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(before.valid() && full.valid());
  ASSERT_GE(dup2(full.get(), STDOUT_FILENO), 0);
  std::printf("a result");
  const absl::Status status = FlushStandardOutput();
  ASSERT_GE(dup2(before.get(), STDOUT_FILENO), 0);
  std::clearerr(stdout);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal,
                               HasSubstr("standard output: cannot be written")));
}

}  // namespace
}  // namespace nsa
