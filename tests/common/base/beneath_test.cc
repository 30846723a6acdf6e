// Every test runs with openat2() and without it.
#include "common/base/beneath.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/testing/no_openat2.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Values;

constexpr int kKernel = 0;

// The errno of openat2() in this thread; 0 when it works.
int ErrorOfOpenat2() {
  open_how how{};
  how.flags = O_PATH | O_CLOEXEC;
  const Fd fd(static_cast<int>(syscall(SYS_openat2, AT_FDCWD, "/", &how, sizeof(how))));
  return fd.valid() ? 0 : errno;
}

// Runs `body` in a thread in which openat2() fails with `error`, or works for kKernel.
void RunWith(int error, const std::function<void()>& body) {
  std::thread([&] {
    if (error != kKernel) {
      ASSERT_TRUE(ForbidOpenat2(error));
      ASSERT_EQ(ErrorOfOpenat2(), error);
    }
    body();
  }).join();
}

std::string Content(const Fd& fd) {
  char buffer[64];
  const ssize_t count = read(fd.get(), buffer, sizeof(buffer));
  return count < 0 ? "unreadable" : std::string(buffer, static_cast<size_t>(count));
}

// top/file, top/a/b/file; outside/file, to which links lead.
class Beneath : public ::testing::TestWithParam<int> {
 protected:
  Beneath() {
    fs::create_directories(root_ / "a/b");
    fs::create_directories(outside_);
    std::ofstream(root_ / "file") << "top";
    std::ofstream(root_ / "a/b/file") << "deep";
    std::ofstream(outside_ / "file") << "secret";
    fs::create_symlink(outside_, root_ / "out");
    fs::create_symlink(outside_ / "file", root_ / "link");
    fs::create_symlink("a", root_ / "inside");
    fs::create_symlink("nowhere", root_ / "dangling");
    mkfifo((root_ / "pipe").c_str(), 0600);
  }

  // What is read at `inner`, or the code of the error.
  std::string Read(const fs::path& inner, int flags = O_RDONLY) {
    const auto fd = OpenBeneath(root_, inner, flags);
    if (!fd.ok()) return absl::StatusCodeToString(fd.status().code());
    struct stat info {};
    fstat(fd->get(), &info);
    return S_ISDIR(info.st_mode) ? absl::StrCat("folder ", info.st_ino) : Content(*fd);
  }
  std::string Folder(const fs::path& inner) {
    struct stat info {};
    stat((root_ / inner).c_str(), &info);
    return absl::StrCat("folder ", info.st_ino);
  }

  const TempDir dir_;
  const fs::path root_ = dir_ / "top";
  const fs::path outside_ = dir_ / "outside";
};

TEST_P(Beneath, OpensFilesAndFolders) {
  RunWith(GetParam(), [&] {
    EXPECT_EQ(Read("file"), "top");
    EXPECT_EQ(Read("a/b/file"), "deep");
    EXPECT_EQ(Read("a//b/./file"), "deep");
    EXPECT_EQ(Read("a/b", O_RDONLY | O_DIRECTORY), Folder("a/b"));
    EXPECT_EQ(Read("a/b/"), Folder("a/b"));
    EXPECT_EQ(Read("a/b/."), Folder("a/b"));
    EXPECT_EQ(Read(".", O_PATH), Folder("."));
    EXPECT_EQ(Read("a", O_PATH), Folder("a"));
    EXPECT_EQ(Read("./"), Folder("."));
    EXPECT_EQ(Read("nothing"), "NOT_FOUND");
    EXPECT_EQ(Read("a/nothing/file"), "NOT_FOUND");
    EXPECT_EQ(Read(""), "NOT_FOUND");
    EXPECT_EQ(Read("file/"), "FAILED_PRECONDITION") << "no folder";
    EXPECT_EQ(Read("file/more"), "FAILED_PRECONDITION");
    EXPECT_EQ(Read("pipe"), "FAILED_PRECONDITION") << "and does not block";
    EXPECT_THAT(OpenBeneath(root_, "pipe", O_WRONLY),
                StatusIs(absl::StatusCode::kFailedPrecondition));
    const auto fd = OpenBeneath(root_, "file", O_RDONLY);
    ASSERT_OK(fd);
    EXPECT_NE(fcntl(fd->get(), F_GETFD) & FD_CLOEXEC, 0);
  });
}

TEST_P(Beneath, FollowsNoLink) {
  RunWith(GetParam(), [&] {
    for (const char* inner :
         {"link", "out", "out/", "out/file", "inside", "inside/", "inside/b", "inside/b/file",
          "dangling", "a/../link", "inside/..", "out/.", "dangling/", "dangling/file"}) {
      for (const int flags : {O_RDONLY, O_PATH, O_RDONLY | O_DIRECTORY, O_PATH | O_DIRECTORY}) {
        EXPECT_THAT(
            OpenBeneath(root_, inner, flags),
            StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("through a symbolic link")))
            << inner << " " << flags;
      }
      EXPECT_FALSE(ResolvesBeneath(root_, inner)) << inner;
    }
  });
}

TEST_P(Beneath, NeverLeavesTheRoot) {
  RunWith(GetParam(), [&] {
    for (const char* inner : {"..", "../top/file", "a/../../outside/file", "a/b/../../..",
                              "../outside/file", "/", "/etc/passwd"}) {
      EXPECT_THAT(
          OpenBeneath(root_, inner, O_RDONLY),
          StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("through a symbolic link")))
          << inner;
      EXPECT_FALSE(ResolvesBeneath(root_, inner)) << inner;
    }
    EXPECT_EQ(Read("a/../file"), "top");
    EXPECT_EQ(Read("a/b/../../file"), "top");
    EXPECT_EQ(Read("a/b/../b/file"), "deep");
    EXPECT_EQ(Read("a/b/.."), Folder("a"));
    EXPECT_EQ(Read("a/.."), Folder("."));
    EXPECT_EQ(Read("nothing/../file"), "NOT_FOUND") << "not taken away by name only";
    EXPECT_EQ(Read("file/../file"), "FAILED_PRECONDITION");
  });
}

TEST_P(Beneath, CreatesAndRemoves) {
  RunWith(GetParam(), [&] {
    constexpr int kCreate = O_WRONLY | O_CREAT | O_APPEND;
    {
      const auto fd = OpenBeneath(root_, "a/new", kCreate, 0600);
      ASSERT_OK(fd);
      EXPECT_EQ(write(fd->get(), "new", 3), 3);
      struct stat info {};
      ASSERT_EQ(fstat(fd->get(), &info), 0);
      EXPECT_EQ(info.st_mode & 0777, 0600u);
    }
    EXPECT_EQ(Read("a/new"), "new");
    EXPECT_OK(OpenBeneath(root_, "a/new", kCreate, 0600));
    EXPECT_THAT(OpenBeneath(root_, "a/new", kCreate | O_EXCL, 0600),
                StatusIs(absl::StatusCode::kAlreadyExists));
    for (const char* inner : {"dangling", "link", "out/new", "inside/new", "../new", "/new"}) {
      EXPECT_THAT(OpenBeneath(root_, inner, kCreate, 0600),
                  StatusIs(absl::StatusCode::kFailedPrecondition))
          << inner;
    }
    EXPECT_FALSE(OpenBeneath(root_, "a/other/", kCreate, 0600).ok());
    EXPECT_FALSE(OpenBeneath(root_, "a", kCreate, 0600).ok());
    EXPECT_FALSE(OpenBeneath(root_, "a/..", kCreate, 0600).ok());
    EXPECT_FALSE(fs::exists(root_ / "a/other"));
    EXPECT_FALSE(fs::exists(root_ / "nowhere"));
    EXPECT_FALSE(fs::exists(outside_ / "new"));

    EXPECT_FALSE(RemoveBeneath(root_, "out/file").ok());
    EXPECT_TRUE(fs::exists(outside_ / "file"));
    EXPECT_OK(RemoveBeneath(root_, "a/new"));
    EXPECT_OK(RemoveBeneath(root_, "file"));
    EXPECT_FALSE(fs::exists(root_ / "a/new"));
    EXPECT_FALSE(fs::exists(root_ / "file"));
  });
}

TEST_P(Beneath, ResolvesWhatDoesNotExistYet) {
  RunWith(GetParam(), [&] {
    for (const char* inner :
         {"", ".", "a", "a/b/file", "pipe", "new", "a/new/deeper", "file/new"}) {
      EXPECT_TRUE(ResolvesBeneath(root_, inner)) << inner;
    }
    EXPECT_FALSE(ResolvesBeneath(root_, "out/new/deeper"));
    EXPECT_FALSE(ResolvesBeneath(root_ / "nothing", "a"));
  });
}

TEST_P(Beneath, TriesAFileThatIsThere) {
  RunWith(GetParam(), [&] {
    EXPECT_OK(CheckOpensBeneath(root_ / "file"));
    EXPECT_THAT(CheckOpensBeneath(root_ / "nothing"),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("O_NOFOLLOW")));
  });
}

// Somebody exchanges a folder of the path for a link, again and again.
TEST_P(Beneath, ALinkThatAppearsMeanwhileLeadsNowhere) {
  fs::create_directory_symlink(outside_, root_ / "exchanged");
  fs::create_directories(outside_ / "b");
  std::ofstream(outside_ / "b/file") << "secret";
  std::atomic<bool> done = false;
  std::thread exchanges([&] {
    while (!done) {
      renameat2(AT_FDCWD, (root_ / "exchanged").c_str(), AT_FDCWD, (root_ / "a").c_str(),
                RENAME_EXCHANGE);
    }
  });
  int opened = 0;
  int refused = 0;
  RunWith(GetParam(), [&] {
    for (int i = 0; i < 1'000'000 && (i < 20'000 || opened < 100 || refused < 100); ++i) {
      const auto fd = OpenBeneath(root_, i % 2 == 0 ? "a/b/file" : "a/b/../b/file", O_RDONLY);
      const std::string content = fd.ok() ? Content(*fd) : "";
      ASSERT_NE(content, "secret");
      (fd.ok() ? opened : refused) += 1;
    }
  });
  done = true;
  exchanges.join();
  EXPECT_GE(opened, 100);
  EXPECT_GE(refused, 100);
}

// A folder that is moved away while the path goes back from it: the way back ends in the root.
TEST_P(Beneath, AFolderThatIsMovedAwayLeadsNowhere) {
  fs::create_directories(outside_ / "b");
  std::atomic<bool> done = false;
  std::thread moves([&] {
    while (!done) {
      rename((root_ / "a/b").c_str(), (outside_ / "moved").c_str());
      rename((outside_ / "moved").c_str(), (root_ / "a/b").c_str());
    }
  });
  RunWith(GetParam(), [&] {
    for (int i = 0; i < 20'000; ++i) {
      // From outside/moved, the path would lead to outside/file.
      const auto fd = OpenBeneath(root_, "a/b/../file", O_RDONLY);
      ASSERT_FALSE(fd.ok()) << Content(*fd);
    }
  });
  done = true;
  moves.join();
}

INSTANTIATE_TEST_SUITE_P(, Beneath, Values(kKernel, ENOSYS, EPERM), [](const auto& way) {
  return std::string(way.param == kKernel  ? "WithOpenat2"
                     : way.param == ENOSYS ? "Missing"
                                           : "Forbidden");
});

}  // namespace
}  // namespace nsa
