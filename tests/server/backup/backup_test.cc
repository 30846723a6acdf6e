#include "server/backup/backup.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/job/data/sha256.h"
#include "common/run/atomic_file.h"
#include "nlohmann/json.hpp"
#include "server/store/sqlite.h"
#include "server/store/state_lock.h"
#include "tests/server/store/job_store_fixture.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const absl::Time kNow = absl::FromUnixSeconds(1'790'000'000);  // 2026-09-21 14:13:20 UTC

class BackupTest : public JobStoreFixture {
 protected:
  fs::path state() const { return folder_.path(); }
  fs::path backup() const { return elsewhere_ / "backup"; }

  void Write(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    ASSERT_OK(WriteFileAtomically(path, text));
  }

  // The store of a state folder.
  absl::StatusOr<std::unique_ptr<JobStore>> OpenStore(const fs::path& state_dir) {
    return JobStore::Open(state_dir, clock_, {});
  }

  // Writes the size and hash that a file of the backup has now into its manifest.
  void Rehash(const fs::path& file) {
    auto manifest = nlohmann::ordered_json::parse(*ReadWholeFile(backup() / "backup.json"));
    for (auto& entry : manifest["files"]) {
      if (backup() / entry["path"].get<std::string>() != file) continue;
      entry["bytes"] = fs::file_size(file);
      Sha256Sum sum;
      sum.Add(*ReadWholeFile(file));
      entry["sha256"] = sum.Hex();
    }
    Write(backup() / "backup.json", manifest.dump());
  }

  TempDir elsewhere_;
};

TEST_F(BackupTest, HasTheStoreOfOneMomentAndEveryOtherFile) {
  const std::string before = Insert("before");
  ASSERT_EQ(*Append(before, 0, 1, 200), 201);
  Write(state() / "access", "hashes");
  Write(state() / "logs" / before / "rank-0000.log", "a line\n");
  const auto made = BackUp(state(), backup(), kNow);  // the store is open meanwhile
  ASSERT_OK(made.status());
  EXPECT_EQ(made->files, 3);
  Insert("after");

  const auto restored = Restore(backup(), elsewhere_ / "new", true, kNow);
  ASSERT_OK(restored.status());
  EXPECT_EQ(restored->size.bytes, made->bytes);
  EXPECT_THAT(restored->replaced.string(), IsEmpty());
  const auto store = OpenStore(elsewhere_ / "new");
  ASSERT_OK(store.status());
  EXPECT_OK((*store)->Find("before").status());
  EXPECT_FALSE((*store)->Find("after").ok());
  EXPECT_EQ((*store)->Events(before, 0, 10)->size(), 1u);
  EXPECT_EQ(*ReadWholeFile(elsewhere_ / "new" / "access"), "hashes");
  EXPECT_EQ(*ReadWholeFile(elsewhere_ / "new" / "logs" / before / "rank-0000.log"), "a line\n");
}

TEST_F(BackupTest, TheStateFolderHasTheTimeOfTheNewest) {
  Insert("a");
  EXPECT_EQ(LastBackup(state()), absl::UnixEpoch()) << "none was made";
  ASSERT_OK(NoteBackup(state(), kNow));
  EXPECT_EQ(LastBackup(state()), kNow);
  const auto made = BackUp(state(), backup(), kNow + absl::Hours(1));
  ASSERT_OK(made.status());
  EXPECT_EQ(made->files, 1) << "the note is not in it";

  const fs::path there = elsewhere_ / "new";
  ASSERT_OK(Restore(backup(), there, true, kNow + absl::Hours(9)).status());
  EXPECT_EQ(LastBackup(there), kNow + absl::Hours(1)) << "that of the backup";
  ASSERT_OK(NoteBackup(there, kNow + absl::Hours(10)));
  ASSERT_OK(Restore(backup(), there, false, kNow + absl::Hours(11)).status());
  EXPECT_EQ(LastBackup(there), kNow + absl::Hours(10)) << "an older backup is not the newest";
  Write(there / "last-backup", "yesterday");
  EXPECT_EQ(LastBackup(there), absl::UnixEpoch());
}

TEST_F(BackupTest, LeavesOutWhatDescribesProcessesAndWhatIsNotTheCoordinators) {
  for (const char* name : {"coordinator.lock", "agent.lock", "agent.log", "access.tmp"}) {
    Write(state() / name, "x");
  }
  Write(state() / "agent" / "node.secret", "x");
  Write(state() / ".cache" / "nsa" / "data" / "block", "x");
  Write(state() / "smtp.password", "x");
  Write(state() / "replaced-20260101-000000" / "access", "old");
  ASSERT_EQ(symlink("/etc/passwd", (state() / "link").c_str()), 0);
  const auto made = BackUp(state(), backup(), kNow);
  ASSERT_OK(made.status());
  EXPECT_EQ(made->files, 1) << "only the store";
  EXPECT_EQ(fs::status(backup()).permissions(), fs::perms::owner_all);
  EXPECT_EQ(fs::status(backup() / "jobs.sqlite").permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(BackupTest, IsWholeWhileJobsArriveAndRecordsAreWritten) {
  const std::string id = Insert("first");
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (int64_t next = 1; !stop; next += 10) {
      Insert(absl::StrCat("job-", next));
      ASSERT_TRUE(Append(id, 0, next, next + 9).ok());
    }
  });
  for (int copy = 0; copy < 5; ++copy) {
    const fs::path target = elsewhere_ / absl::StrCat("copy-", copy);
    ASSERT_OK(BackUp(state(), target, kNow).status());
    const fs::path there = elsewhere_ / absl::StrCat("state-", copy);
    ASSERT_OK(Restore(target, there, true, kNow).status());
    const auto store = OpenStore(there);
    ASSERT_OK(store.status());
    EXPECT_OK((*store)->Find(id).status());
  }
  stop = true;
  writer.join();
}

TEST_F(BackupTest, PutsAsideWhatWasThere) {
  Insert("kept");
  ASSERT_OK(BackUp(state(), backup(), kNow).status());
  Insert("younger");
  Write(state() / "access", "younger hashes");
  store_.reset();
  const auto restored = Restore(backup(), state(), false, kNow);
  ASSERT_OK(restored.status());
  EXPECT_EQ(restored->replaced, state() / "replaced-20260921-141320");
  EXPECT_FALSE(fs::exists(state() / "access")) << "the backup has none";
  EXPECT_EQ(*ReadWholeFile(restored->replaced / "access"), "younger hashes");
  EXPECT_OK((*OpenStore(restored->replaced))->Find("younger").status());
  Reopen();
  EXPECT_OK(store_->Find("kept").status());
  EXPECT_FALSE(store_->Find("younger").ok());
  store_.reset();
  Write(state() / "smtp.password", "x");
  Write(state() / ".cache" / "block", "x");
  const auto again = Restore(backup(), state(), false, kNow);
  ASSERT_OK(again.status());
  EXPECT_EQ(again->replaced, state() / "replaced-20260921-141320-2");
  EXPECT_EQ(*ReadWholeFile(state() / "smtp.password"), "x") << "not the coordinator's";
  EXPECT_TRUE(fs::exists(state() / ".cache" / "block"));
}

TEST_F(BackupTest, IsRestoredToAFolderThatNoCoordinatorHasUsedOnlyIfAsked) {
  ASSERT_OK(BackUp(state(), backup(), kNow).status());
  const fs::path other = elsewhere_ / "other";
  const auto refused = [&] { return Restore(backup(), other, false, kNow).status(); };
  EXPECT_THAT(refused(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--new")));
  EXPECT_FALSE(fs::exists(other));
  Write(other / "thesis.tex", "x");
  EXPECT_THAT(refused(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--new")));
  ASSERT_OK(Restore(backup(), other, true, kNow).status());
  ASSERT_OK(Restore(backup(), other, false, kNow).status());
  EXPECT_TRUE(fs::exists(other / "thesis.tex"));
}

TEST_F(BackupTest, IsNotRestoredIfItsStoreIsNewer) {
  ASSERT_OK(BackUp(state(), backup(), kNow).status());
  {
    const auto newer = Database::Open(backup() / "jobs.sqlite");
    ASSERT_OK(newer.status());
    ASSERT_OK((*newer)->Execute("PRAGMA user_version=300"));
  }
  store_.reset();
  Rehash(backup() / "jobs.sqlite");
  EXPECT_THAT(Restore(backup(), state(), false, kNow).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr(absl::StrCat("has a store of version 300 (at most ",
                                              kSchemaVersion, ")"))));
  EXPECT_TRUE(fs::exists(state() / "jobs.sqlite"));
}

TEST_F(BackupTest, OfAnEarlierVersionIsRestoredWithoutWhatIsNotTheCoordinators) {
  ASSERT_OK(BackUp(state(), backup(), kNow).status());
  auto manifest = nlohmann::ordered_json::parse(*ReadWholeFile(backup() / "backup.json"));
  manifest["files"].push_back({{"path", "smtp.password"}, {"bytes", 1}, {"sha256", "x"}});
  Write(backup() / "backup.json", manifest.dump());
  Write(backup() / "smtp.password", "old");
  Write(state() / "smtp.password", "new");
  store_.reset();
  ASSERT_OK(Restore(backup(), state(), false, kNow).status());
  EXPECT_EQ(*ReadWholeFile(state() / "smtp.password"), "new");
}

TEST_F(BackupTest, IsNotRestoredWhileACoordinatorRuns) {
  ASSERT_OK(BackUp(state(), backup(), kNow).status());
  const auto lock = LockStateDir(state());
  ASSERT_OK(lock.status());
  EXPECT_THAT(Restore(backup(), state(), false, kNow).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr(absl::StrCat("process ", getpid()))));
}

TEST_F(BackupTest, RefusesADamagedBackupBeforeAnythingIsChanged) {
  Insert("here");
  Write(state() / "access", "hashes");
  ASSERT_OK(BackUp(state(), backup(), kNow).status());
  store_.reset();
  Write(backup() / "access", "hashez");
  EXPECT_THAT(Restore(backup(), state(), false, kNow).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("access has 6 bytes and SHA-256")));
  fs::remove(backup() / "access");
  EXPECT_THAT(Restore(backup(), state(), false, kNow).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("access is missing")));
  EXPECT_EQ(*ReadWholeFile(state() / "access"), "hashes");
  Reopen();
  EXPECT_OK(store_->Find("here").status());
}

// A full disk: the files in place are untouched, and the next start is not refused.
TEST_F(BackupTest, ThatDoesNotFitLeavesEverythingAsItWas) {
  Insert("here");
  Write(state() / "access", std::string(64 << 10, 'a'));
  ASSERT_OK(BackUp(state(), backup(), kNow).status());
  store_.reset();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto restore = [&] {
    const auto handler = signal(SIGXFSZ, SIG_IGN);
    const rlimit small = {.rlim_cur = 16 << 10, .rlim_max = before.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const absl::Status status = Restore(backup(), state(), false, kNow).status();
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    return status;
  };
  EXPECT_THAT(std::string(restore().message()), HasSubstr("File too large"));
  EXPECT_FALSE(fs::exists(state() / "restoring"));
  Reopen();
  EXPECT_OK(store_->Find("here").status());
  store_.reset();
  // What an interrupted restore has left stays half of two stores.
  fs::create_directory(state() / "restoring");
  EXPECT_FALSE(restore().ok());
  EXPECT_TRUE(fs::exists(state() / "restoring"));
}

TEST_F(BackupTest, RefusesAFolderThatIsNoBackup) {
  const fs::path folder = elsewhere_ / "folder";
  const auto refusal = [&](const std::string& manifest) {
    Write(folder / "backup.json", manifest);
    return Restore(folder, elsewhere_ / "new", true, kNow).status();
  };
  const std::string store = R"({"path": "jobs.sqlite", "bytes": 1, "sha256": "x"})";
  const auto with = [&](const std::string& file) {
    return absl::StrCat(R"({"format": 1, "files": [)", store, file, "]}");
  };
  EXPECT_THAT(Restore(elsewhere_ / "nothing", elsewhere_ / "new", true, kNow).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has no backup.json")));
  for (const std::string& manifest :
       {std::string("no JSON"), std::string("[]"), std::string(R"({"format": 1})"),
        std::string(R"({"format": 1, "files": []})"), std::string(R"({"format": 1, "files": 5})"),
        absl::StrCat(R"({"format": )", std::string(500'000, '['), std::string(500'000, ']'), "}"),
        with(R"(, {"path": "../x", "bytes": 1, "sha256": "x"})"),
        with(R"(, {"path": "/etc/x", "bytes": 1, "sha256": "x"})"),
        with(R"(, {"path": "jobs.sqlite-wal", "bytes": 1, "sha256": "x"})"),
        with(R"(, {"path": "x", "bytes": "1", "sha256": "x"})"), with(", 7")}) {
    EXPECT_THAT(refusal(manifest),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cannot be read")))
        << manifest;
  }
  EXPECT_THAT(refusal(R"({"format": 2, "files": []})"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has format 2 (must be 1)")));
  EXPECT_FALSE(fs::exists(elsewhere_ / "new"));
}

TEST_F(BackupTest, RefusesATargetThatIsTakenOrLiesInTheStateFolder) {
  Write(backup() / "file", "x");
  EXPECT_THAT(BackUp(state(), backup(), kNow).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("exists")));
  EXPECT_THAT(BackUp(state(), state() / "backup", kNow).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("lies in")));
  EXPECT_THAT(BackUp(elsewhere_ / "nowhere", elsewhere_ / "b", kNow).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("has no jobs.sqlite")));
  EXPECT_FALSE(fs::exists(elsewhere_ / "b"));
}

TEST_F(BackupTest, RefusesAFileWhoseNameIsNotText) {
  Write(state() / "dumps" / "a\xff.txt", "x");
  EXPECT_THAT(BackUp(state(), backup(), kNow).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is not UTF-8")));
  EXPECT_FALSE(fs::exists(backup()));
}

TEST_F(BackupTest, SaysThatTheStoreIsDamaged) {
  Insert("job");
  store_.reset();
  std::fstream file(state() / "jobs.sqlite", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(0);
  file << "this is not a database any more";
  file.close();
  EXPECT_THAT(BackUp(state(), backup(), kNow).status(), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_FALSE(fs::exists(backup()));
}

}  // namespace
}  // namespace nsa::server
