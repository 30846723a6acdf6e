// What a reader gets of a folder whose owner means harm. Run as root for the files of others.
#include "common/run/run_file.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <fstream>

#include "common/run/control_socket.h"
#include "common/run/journal.h"
#include "common/run/status_page.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr uid_t kAda = 65534;

class RunFileTest : public ::testing::Test {
 protected:
  RunFileTest() { std::ofstream(secret_) << "secret"; }

  // Makes everything in the folder, and the folder, the user's.
  void GiveToAda() const {
    for (const auto& entry : fs::directory_iterator(dir_.path())) Give(entry.path());
    Give(dir_.path());
  }
  static void Give(const fs::path& path) { ASSERT_EQ(lchown(path.c_str(), kAda, kAda), 0) << path; }

  const TempDir dir_;
  const TempDir elsewhere_;
  const fs::path secret_ = elsewhere_ / "secret";
  const fs::path file_ = dir_ / "log";
};

TEST_F(RunFileTest, ReadsTheOwnersFileUpToABound) {
  std::ofstream(file_) << "0123456789";
  EXPECT_EQ(*ReadRunFile(file_, 100), "0123456789");
  EXPECT_EQ(*ReadRunFile(file_, 4), "0123");
  EXPECT_THAT(ReadRunFile(dir_ / "none", 4), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(OwnerOfFolder(dir_.path())->uid, geteuid());
}

TEST_F(RunFileTest, FollowsNoLinkAndWaitsForNoPipe) {
  fs::create_symlink(secret_, file_);
  EXPECT_THAT(ReadRunFile(file_, 4), StatusIs(absl::StatusCode::kFailedPrecondition));
  fs::remove(file_);
  ASSERT_EQ(mkfifo(file_.c_str(), 0600), 0);
  EXPECT_THAT(ReadRunFile(file_, 4), StatusIs(absl::StatusCode::kFailedPrecondition));
  fs::remove(file_);
  fs::create_directory(file_);
  EXPECT_THAT(ReadRunFile(file_, 4), StatusIs(absl::StatusCode::kFailedPrecondition));
  fs::create_directory_symlink(elsewhere_.path(), dir_ / "linked");
  EXPECT_THAT(ReadRunFile(dir_ / "linked" / "secret", 4),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(OwnerOfFolder(dir_ / "linked"), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(RunFileTest, AFileOfSomebodyElseInTheFolderIsNotRead) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  GiveToAda();
  fs::create_hard_link(secret_, file_);  // as the folder's owner can
  EXPECT_THAT(ReadRunFile(file_, 4),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("belongs to user 0")));
  Give(file_);
  EXPECT_EQ(*ReadRunFile(file_, 4), "secr");
}

TEST_F(RunFileTest, AJournalAndAStatusPageOfSomebodyElseAreNotRead) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  {
    ASSERT_OK((*JournalWriter::Create(dir_ / "journal"))->Append(v1::WorkerRecord()));
    ASSERT_OK(StatusPage::Create(dir_ / "status", 0, 1, 1));
  }
  ASSERT_TRUE(JournalReader(dir_ / "journal").Next()->has_value());
  ASSERT_OK(ReadStatusPage(dir_ / "status"));
  Give(dir_.path());
  EXPECT_THAT(JournalReader(dir_ / "journal").Next(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(ReadStatusPage(dir_ / "status"), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(RunFileTest, NobodyLeadsAStopToAnotherWorker) {
  int asked = 0;
  const auto server = ControlServer::Start(elsewhere_ / "control.sock", [&](const auto&) {
    ++asked;
    return v1::ControlReply();
  });
  ASSERT_OK(server);
  const auto call = [&] {
    return ControlCall(dir_ / "control.sock", v1::ControlRequest(), absl::Seconds(5)).status();
  };
  EXPECT_OK(ControlCall(elsewhere_ / "control.sock", v1::ControlRequest(), absl::Seconds(5)));
  EXPECT_EQ(asked, 1);
  fs::create_symlink(elsewhere_ / "control.sock", dir_ / "control.sock");
  EXPECT_THAT(call(), StatusIs(absl::StatusCode::kFailedPrecondition));
  if (geteuid() == 0) {
    fs::remove(dir_ / "control.sock");
    GiveToAda();
    fs::create_hard_link(elsewhere_ / "control.sock", dir_ / "control.sock");
    EXPECT_THAT(call(), StatusIs(absl::StatusCode::kFailedPrecondition));
  }
  EXPECT_EQ(asked, 1);
}

}  // namespace
}  // namespace nsa
