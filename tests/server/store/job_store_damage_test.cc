// A store that was damaged on disk, or whose writer was killed.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/run/process.h"
#include "tests/server/store/job_store_fixture.h"
#include "tests/testing/paths.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::server {
namespace {

using ::testing::HasSubstr;

class JobStoreDamageTest : public JobStoreFixture {
 protected:
  absl::Status OpenAgain() {
    store_.reset();
    return JobStore::Open(folder_.path(), clock_, {}).status();
  }

  std::string Bytes() {
    std::ifstream file(folder_ / "jobs.sqlite", std::ios::binary);
    std::stringstream bytes;
    bytes << file.rdbuf();
    return bytes.str();
  }
  void WriteBytes(const std::string& bytes) {
    std::ofstream(folder_ / "jobs.sqlite", std::ios::binary) << bytes;
  }
};

TEST_F(JobStoreDamageTest, RefusesAStoreOfANewerVersion) {
  store_.reset();
  auto database = Database::Open(folder_ / "jobs.sqlite");
  ASSERT_OK((*database)->Execute("PRAGMA user_version=99"));
  database->reset();
  EXPECT_THAT(OpenAgain(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                    HasSubstr(absl::StrCat("jobs.sqlite has version 99 (at most ",
                                                           kSchemaVersion, ")"))));
}

TEST_F(JobStoreDamageTest, RefusesADamagedSchemaAndNamesWhatIsMissing) {
  Insert("demo");
  store_.reset();
  const std::string good = Bytes();
  for (const auto& [damage, missing] : std::map<std::string, std::string>{
           {"DROP INDEX records_by_job", "the index records_by_job of records"},
           {"DROP TABLE events", "the column events.body BLOB"},
           {"ALTER TABLE requests RENAME COLUMN fingerprint TO other",
            "the column requests.fingerprint TEXT"},
           {"ALTER TABLE curve DROP COLUMN body", "the column curve.body BLOB"},
           {"DROP TABLE curve_columns", "the column curve_columns.body BLOB"},
           {"PRAGMA user_version=-1", "version -1"}}) {
    WriteBytes(good);
    auto database = Database::Open(folder_ / "jobs.sqlite");
    ASSERT_OK((*database)->Execute(damage));
    database->reset();
    EXPECT_THAT(OpenAgain(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(missing))) << damage;
  }
  WriteBytes(good);
  EXPECT_OK(OpenAgain());
}

TEST_F(JobStoreDamageTest, AnEmptyFileIsNoNewStoreWhereThereWasOne) {
  std::ofstream(folder_ / "audit.log") << "{}\n";
  store_.reset();
  WriteBytes("");
  std::filesystem::remove(folder_ / "jobs.sqlite-wal");
  EXPECT_THAT(OpenAgain(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("missing or empty")));
}

TEST_F(JobStoreDamageTest, RefusesWhatIsNoDatabaseAndNamesTheFile) {
  store_.reset();
  WriteBytes(std::string(10'000, 'x'));
  EXPECT_THAT(OpenAgain(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("jobs.sqlite is damaged")));
}

// A file that the file system does not let grow: what SQLite says of a disk that fails, too.
TEST_F(JobStoreDamageTest, AnErrorOfTheFileSystemIsNoDamage) {
  store_.reset();
  const TempDir other;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {.rlim_cur = 16 << 10, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = JobStore::Open(other.path(), clock_, {}).status();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal,
                               ::testing::AllOf(HasSubstr("jobs.sqlite: disk I/O error"),
                                                HasSubstr("check the disk"),
                                                ::testing::Not(HasSubstr("restore")))));
}

TEST_F(JobStoreDamageTest, RefusesATruncatedStore) {
  for (int i = 0; i < 50; ++i) Insert("demo");
  store_.reset();
  const std::string bytes = Bytes();
  WriteBytes(bytes.substr(0, bytes.size() / 2));
  EXPECT_THAT(OpenAgain(), StatusIs(absl::StatusCode::kDataLoss));
}

// A flipped byte is found when the store is opened, or it is in a place that no answer depends on.
// In the second case every job still reads as it was written.
TEST_F(JobStoreDamageTest, NeverServesAJobThatWasFlippedOnDisk) {
  std::vector<std::string> ids;
  for (int i = 0; i < 20; ++i) ids.push_back(Insert("demo"));
  std::map<std::string, std::string> before;
  for (const std::string& id : ids) before[id] = (*store_->Find(id))->SerializeAsString();
  store_.reset();
  const std::string good = Bytes();
  std::mt19937 random(7);
  int refused = 0;
  for (int i = 0; i < 200; ++i) {
    std::string bad = good;
    bad[random() % bad.size()] ^= static_cast<char>(1 << (random() % 8));
    WriteBytes(bad);
    auto opened = JobStore::Open(folder_.path(), clock_, {});
    if (!opened.ok()) {
      ++refused;
      EXPECT_THAT(std::string(opened.status().message()), HasSubstr("jobs.sqlite"));
      continue;
    }
    for (const auto& [id, bytes] : before) {
      const auto job = (*opened)->Find(id);
      if (job.ok()) {
        EXPECT_EQ((*job)->SerializeAsString(), bytes);
      }
    }
    opened->reset();
    std::filesystem::remove(folder_ / "jobs.sqlite-wal");
    std::filesystem::remove(folder_ / "jobs.sqlite-shm");
  }
  EXPECT_GT(refused, 0);
}

TEST_F(JobStoreDamageTest, RefusesAStoreWithAFlippedBitInAJob) {
  for (int i = 0; i < 5; ++i) Insert("demo");
  store_.reset();
  const std::string good = Bytes();
  int jobs = 0;
  for (size_t at = good.find("/nowhere"); at != std::string::npos;
       at = good.find("/nowhere", at + 1), ++jobs) {
    std::string bad = good;
    bad[at + 3] ^= 4;
    WriteBytes(bad);
    EXPECT_THAT(OpenAgain(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("wrong checksum")));
  }
  EXPECT_EQ(jobs, 5);
  WriteBytes(good);
  EXPECT_OK(OpenAgain());
}

TEST_F(JobStoreDamageTest, WhatWasAcknowledgedSurvivesKillNine) {
  store_.reset();
  std::mt19937 random(std::random_device{}());
  for (int round = 0; round < 5; ++round) {
    const std::filesystem::path output = folder_ / absl::StrCat("out-", round);
    SpawnOptions options;
    options.argv = {Program("store_writer"), folder_.path().string(), absl::StrCat(round)};
    options.output = output;
    const auto writer = Spawn(options);
    ASSERT_TRUE(writer.ok()) << writer.status();
    std::this_thread::sleep_for(std::chrono::milliseconds(40 + random() % 80));
    ASSERT_OK(SignalProcess(*writer, SIGKILL));
    waitpid(writer->pid, nullptr, 0);
    Reopen();
    std::ifstream said(output);
    std::string kind;
    std::string id;
    std::string detail;
    std::map<std::string, size_t> records;
    while (said >> kind >> id >> detail) {
      if (kind == "job") {
        const auto job = store_->FindRequest(detail, "fingerprint");
        ASSERT_TRUE(job.ok() && *job != nullptr) << detail;
        EXPECT_EQ((*job)->job().id(), id);
      } else if (kind == "record") {
        ++records[id];
      }
    }
    for (const auto& [job, count] : records) {
      const std::vector<int64_t> steps = Steps(job, 0);
      EXPECT_GE(steps.size(), count) << "acknowledged and gone";
      EXPECT_LE(steps.size(), count + 1) << "at most the one that was not acknowledged yet";
      for (size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i], static_cast<int64_t>(i + 1));
    }
    store_.reset();
  }
}

}  // namespace
}  // namespace nsa::server
