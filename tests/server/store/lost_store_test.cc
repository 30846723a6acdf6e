// A state folder whose store is lost: SQLite would make another one without a word.
#include "server/store/lost_store.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/server/store/job_store_fixture.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class LostStoreTest : public JobStoreFixture {
 protected:
  absl::Status OpenAgain() {
    store_.reset();
    return JobStore::Open(folder_.path(), clock_, {}).status();
  }
  void Write(const std::string& name, const std::string& text = "x") {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
  }
  void RemoveStore() {
    store_.reset();
    for (const char* end : {"", "-wal", "-shm"})
      fs::remove(folder_ / (std::string("jobs.sqlite") + end));
  }
  // What is left of a store whose process was killed before its first checkpoint, without its WAL.
  void LoseTheWal() {
    const fs::path kept = folder_ / "kept";
    fs::copy_file(folder_ / "jobs.sqlite", kept);
    RemoveStore();
    fs::rename(kept, folder_ / "jobs.sqlite");
  }
};

TEST_F(LostStoreTest, ANewFolderWithWhatTheFirstStartFindsThereGetsAStore) {
  RemoveStore();
  for (const char* name : {"token", "ca.key", "server.crt", "coordinator.lock", "agent/node.secret",
                           "agent/jobs/jremote/gen-000001/rank-0000/journal"}) {
    Write(name);
  }
  for (const char* name : {"access", "audit.log"}) Write(name, "");
  fs::create_directories(folder_ / "logs");
  EXPECT_OK(OpenAgain());
}

TEST_F(LostStoreTest, WhatOnlyAServingCoordinatorWritesShowsThatThereWasOne) {
  for (const char* name :
       {"logs/jabc/rank-0000.gen-000001.0000000000000000.log", "dumps/jabc.1.txt", "access",
        "audit.log", "cordons.pb", "notices.pb", "restoring/jobs.sqlite"}) {
    RemoveStore();
    Write(name);
    const std::string first = fs::path(name).begin()->string();
    EXPECT_THAT(OpenAgain(),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(HasSubstr("jobs.sqlite is missing or empty, but " + first +
                                         " shows that there was one"),
                               HasSubstr("nsactl admin restore"), HasSubstr("--new-store"))));
    EXPECT_FALSE(fs::exists(folder_ / "jobs.sqlite")) << "refused before a file was made";
    fs::remove_all(folder_ / first);
  }
}

TEST_F(LostStoreTest, AFolderWhoseRestoreWasInterruptedIsRefused) {
  EXPECT_OK(CheckRestored(folder_.path()));
  fs::create_directory(folder_ / "restoring");
  EXPECT_OK(CheckRestored(folder_.path())) << "everything has left it";
  Write("restoring/access");
  EXPECT_THAT(CheckRestored(folder_.path()),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("run `nsactl admin restore` again")));
}

TEST_F(LostStoreTest, AnEmptiedStoreIsRefusedAndItsWalStays) {
  Insert("demo");
  const fs::path wal = folder_ / "jobs.sqlite-wal";
  fs::copy_file(wal, folder_ / "kept");
  store_.reset();
  fs::rename(folder_ / "kept", wal);
  std::ofstream(folder_ / "jobs.sqlite", std::ios::trunc);
  EXPECT_THAT(OpenAgain(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("jobs.sqlite-wal shows")));
  EXPECT_TRUE(fs::exists(wal));
}

TEST_F(LostStoreTest, AStoreWithoutItsWalIsRefusedWhereLogsAre) {
  LoseTheWal();
  ASSERT_GT(fs::file_size(folder_ / "jobs.sqlite"), 0);
  Write("logs/jabc/rank-0000.gen-000001.0000000000000000.log");
  EXPECT_THAT(OpenAgain(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("logs shows")));
}

TEST_F(LostStoreTest, AStartThatWasKilledBeforeItsFirstCommitBeginsAgain) {
  LoseTheWal();
  EXPECT_OK(OpenAgain());
}

TEST_F(LostStoreTest, AnEmptyStoreIsMadeOnPurposeButNotInThePlaceOfOne) {
  EXPECT_THAT(JobStore::MakeNew(folder_.path(), clock_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("jobs.sqlite is there; move it away")));
  RemoveStore();
  Write("access");
  ASSERT_OK(JobStore::MakeNew(folder_.path(), clock_));
  EXPECT_OK(OpenAgain());
}

}  // namespace
}  // namespace nsa::server
