// The values of stored curves are found by name: those of a store of version 1, which had none, and
// those of programs with other quantities.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "server/decide/curve.h"
#include "server/store/sealed.h"
#include "tests/server/store/job_store_fixture.h"
#include "tests/testing/full_records.h"
#include "tests/testing/status_matchers.h"

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CurveNamesTest : public JobStoreFixture {
 protected:
  static constexpr char kOld[] = "jversion1";  // the job of version_1.sql

  // version_1.sql is the dump of a store of version 1, in whose four steps every field has a value;
  // version_1.curves is what the program that wrote it read from it.
  static std::string File(const std::string& name) {
    std::ifstream in(SourceDir() + "/tests/server/store/" + name);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void MakeVersion1() {
    store_.reset();
    for (const char* name : {"jobs.sqlite", "jobs.sqlite-wal", "jobs.sqlite-shm"}) {
      std::filesystem::remove(folder_ / name);
    }
    Execute("PRAGMA journal_mode=WAL");
    Execute(File("version_1.sql"));
    Execute("PRAGMA user_version=1");
  }
  void OpenVersion1() {
    MakeVersion1();
    Reopen();
  }
  absl::Status Opened() {
    store_.reset();
    return JobStore::Open(folder_.path(), clock_, {}).status();
  }
  void Execute(const std::string& sql) {
    auto database = Database::Open(folder_ / "jobs.sqlite");
    ASSERT_OK(database.status());
    ASSERT_OK((*database)->Execute(sql));
  }
  int64_t Query(const std::string& sql) {
    auto database = Database::Open(folder_ / "jobs.sqlite");
    return *(*database)->QueryInt(sql);
  }
  // Another program has written the buckets of this kind.
  void SetNames(CurveKind kind, const std::vector<std::string>& names) {
    v1::StoredColumns columns;
    *columns.mutable_names() = {names.begin(), names.end()};
    auto database = *Database::Open(folder_ / "jobs.sqlite");
    Statement row = *database->Prepare("UPDATE curve_columns SET body = ? WHERE kind = ?");
    ASSERT_OK(row.BindBlob(1, Seal(columns)).Bind(2, static_cast<int64_t>(kind)).Run());
  }

  // `sequence` is that of the first of these steps.
  void AppendSteps(const std::string& id, int64_t first, int64_t last, int64_t sequence) {
    v1::ReportRecordsRequest request;
    request.set_job_id(id);
    request.set_generation(1);
    for (int64_t step = first; step <= last; ++step) {
      *request.add_records() = FullStep(step);
      request.mutable_records()->rbegin()->set_sequence(sequence + step - first);
    }
    ASSERT_OK(store_->AppendRecords(request, {FullGpu(0.5)}).status());
  }
  std::vector<v1::CurveBucket> Buckets(const std::string& id, CurveKind kind) {
    auto buckets = store_->Buckets(id, kind, 0);
    EXPECT_OK(buckets.status());
    return buckets.ok() ? *std::move(buckets) : std::vector<v1::CurveBucket>();
  }
  // What was measured at the first `steps` steps: of each layer and name its count, mean, least and
  // greatest value, and how many were not finite.
  std::string Curves(const std::string& id, int64_t steps) {
    std::string text;
    const auto add = [&](const char* title, CurveKind kind,
                         std::span<const std::string_view> names) {
      for (const v1::CurveBucket& bucket : Buckets(id, kind)) {
        if (bucket.first_step() > steps) break;
        absl::StrAppendFormat(&text, "%s %d-%d width %d at %d after %d tokens\n", title,
                              bucket.first_step(), bucket.last_step(), bucket.width(),
                              bucket.unix_nanos(), bucket.total_tokens());
        std::vector<std::string> lines;
        for (int i = 0; i < bucket.count_size(); ++i) {
          const int64_t nonfinite = i < bucket.nonfinite_size() ? bucket.nonfinite(i) : 0;
          if (bucket.count(i) == 0 && nonfinite == 0) continue;
          const size_t entry = static_cast<size_t>(i);
          lines.push_back(absl::StrFormat(
              "  %d %s %d %.9g %.9g %.9g %d\n", entry / names.size(), names[entry % names.size()],
              bucket.count(i), bucket.mean(i), bucket.least(i), bucket.greatest(i), nonfinite));
        }
        std::ranges::sort(lines);
        for (const std::string& line : lines) text += line;
      }
    };
    add("steps", CurveKind::kSteps, kStepValues);
    add("layers", CurveKind::kLayers, kLayerValues);
    add("gpus", CurveKind::kGpus, kGpuValues);
    return text;
  }
  static int PlaceOf(const char* name) {
    return static_cast<int>(std::ranges::find(kStepValues, name) - kStepValues.begin());
  }
};

TEST_F(CurveNamesTest, AStoreOfVersion1HasTheSameCurvesAndGoesOn) {
  OpenVersion1();
  EXPECT_EQ(Query("PRAGMA user_version"), kSchemaVersion);
  const std::string before = File("version_1.curves");
  ASSERT_THAT(before, HasSubstr("  0 loss 1 2.75 2.75 2.75 0\n"));
  EXPECT_EQ(Curves(kOld, 4), before);
  AppendSteps(kOld, 5, 5, 7);
  for (int life = 0; life < 2; ++life) {
    EXPECT_EQ(Curves(kOld, 4), before);
    const v1::CurveBucket fifth = Buckets(kOld, CurveKind::kSteps).back();
    const v1::CurveBucket measured = StepBucket(FullStep(5));
    EXPECT_EQ(fifth.SerializeAsString(), measured.SerializeAsString());
    EXPECT_EQ(Buckets(kOld, CurveKind::kLayers).back().SerializeAsString(),
              LayerBucket(FullStep(5)).SerializeAsString());
    Reopen();
  }
}

// A program that kept no curves wrote version 1, too.
TEST_F(CurveNamesTest, AStoreOfVersion1WithoutCurvesGetsThemFromItsRecords) {
  MakeVersion1();
  Execute(
      "DROP TABLE curve; DROP TABLE identity; DROP TABLE clock; DROP TABLE gpu_time; "
      "DROP INDEX requests_by_time; ALTER TABLE requests DROP COLUMN unix_seconds;");
  Reopen();
  EXPECT_EQ(Query("PRAGMA user_version"), kSchemaVersion);
  const std::string before = File("version_1.curves");
  // A quantity that is younger than version 1 follows from the records, too.
  std::string curves;
  const std::vector<std::string> lines = absl::StrSplit(Curves(kOld, 4), '\n', absl::SkipEmpty());
  for (const std::string& line : lines) {
    if (!absl::StrContains(line, "learned_tokens")) absl::StrAppend(&curves, line, "\n");
  }
  EXPECT_EQ(curves, before.substr(0, before.find("gpus "))) << "GPUs are in no record";
}

TEST_F(CurveNamesTest, WhatStopsTheMigrationLeavesVersion1) {
  MakeVersion1();
  {
    auto other = *Database::Open(folder_ / "jobs.sqlite");
    const auto lock = Transaction::Begin(other.get());
    ASSERT_OK(lock.status());
    EXPECT_THAT(Opened(), StatusIs(absl::StatusCode::kUnavailable,
                                   HasSubstr("another program writes to it")));
  }
  Execute(CurvePointTable::kColumnsSchema);
  EXPECT_THAT(Opened(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("already exists")));
  EXPECT_EQ(Query("PRAGMA user_version"), 1);
  EXPECT_EQ(Query("SELECT COUNT(*) FROM curve_columns"), 0);
  Execute("DROP TABLE curve_columns");
  Reopen();
  EXPECT_EQ(Query("PRAGMA user_version"), kSchemaVersion);
  EXPECT_EQ(Curves(kOld, 4), File("version_1.curves"));
}

TEST_F(CurveNamesTest, BucketsOfBothVersionsBecomeOne) {
  OpenVersion1();
  const int loss = PlaceOf("loss");
  AppendSteps(kOld, 5, 2'050, 7);
  const auto buckets = Buckets(kOld, CurveKind::kSteps);
  ASSERT_EQ(buckets.size(), 1'025u);
  EXPECT_EQ(buckets[0].width(), 2);
  EXPECT_EQ(buckets[0].greatest(loss), 2.75F) << "of step 1, which version 1 wrote";
  EXPECT_EQ(buckets[0].least(loss), 2.5F);
  EXPECT_EQ(buckets[1].count(loss), 1);
  EXPECT_EQ(buckets[1].nonfinite(loss), 1) << "of step 4";
  EXPECT_EQ(buckets[1].mean(PlaceOf("tokens_per_second")), 51234.56F);
}

TEST_F(CurveNamesTest, ValuesAreFoundByNameAndOthersWereNotMeasured) {
  const std::string id = Insert("demo");
  AppendSteps(id, 1, 1, 1);
  // Where this program writes its first three values, the other one had these.
  std::vector<std::string> names(kStepValues.begin(), kStepValues.end());
  ASSERT_THAT(std::vector(names.begin(), names.begin() + 3),
              ElementsAre("loss", "learning_rate", "tokens_per_second"));
  names[0] = "learning_rate";
  names[1] = "of_a_newer_version";
  names[2] = "loss";
  store_.reset();
  SetNames(CurveKind::kSteps, names);
  Reopen();
  const auto buckets = Buckets(id, CurveKind::kSteps);
  ASSERT_EQ(buckets.size(), 1u);
  ASSERT_EQ(static_cast<size_t>(buckets[0].count_size()), kStepValues.size());
  EXPECT_EQ(buckets[0].mean(PlaceOf("loss")), 51234.56F);
  EXPECT_EQ(buckets[0].mean(PlaceOf("learning_rate")), static_cast<float>(2.5 + 1.0 / 3));
  EXPECT_EQ(buckets[0].count(PlaceOf("tokens_per_second")), 0) << "it has no such name";
  EXPECT_EQ(buckets[0].mean(PlaceOf("grad_norm")), 0.7F) << "where it was";
}

TEST_F(CurveNamesTest, TheNamesStandOnceInTheStore) {
  const std::string id = Insert("demo");
  AppendSteps(id, 1, 1, 1);
  EXPECT_EQ(Query("SELECT COUNT(*) FROM curve_columns"), 3) << "steps, layers, GPUs";
  const v1::CurveBucket bucket = StepBucket(FullStep(1));
  EXPECT_EQ(Query("SELECT LENGTH(body) FROM curve WHERE kind = 1"),
            static_cast<int64_t>(Seal(bucket).size()))
      << "no bucket has a byte for them";
  Reopen();
  EXPECT_EQ(Query("SELECT COUNT(*) FROM curve_columns"), 3);
  store_.reset();
  SetNames(CurveKind::kSteps, {"loss"});
  Reopen();
  EXPECT_EQ(Query("SELECT COUNT(*) FROM curve_columns WHERE kind = 1"), 2) << "another version's";
  AppendSteps(id, 2, 2, 2);
  EXPECT_EQ(Query("SELECT MAX(LENGTH(body)) FROM curve WHERE kind = 1"),
            static_cast<int64_t>(Seal(bucket).size()) + 3)
      << "its list, and the larger number of tokens";
}

// As sqlite3's .recover leaves it when the page of the names is lost.
TEST_F(CurveNamesTest, NamesAreNotMadeUpForBucketsThatHaveLostTheirs) {
  store_.reset();
  Execute("DELETE FROM curve_columns");  // a coordinator that ended before it wrote any
  Reopen();
  EXPECT_EQ(Query("SELECT COUNT(*) FROM curve_columns"), 3);
  AppendSteps(Insert("demo"), 1, 1, 1);
  store_.reset();
  Execute("DELETE FROM curve_columns WHERE kind = 2");
  EXPECT_THAT(Opened(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the names of curves are missing")));
  EXPECT_EQ(Query("SELECT COUNT(*) FROM curve_columns"), 2);
}

TEST_F(CurveNamesTest, ABucketWithoutNamesIsDamage) {
  const std::string id = Insert("demo");
  AppendSteps(id, 1, 1, 1);
  store_.reset();
  v1::CurveBucket bucket = StepBucket(FullStep(1));
  bucket.set_columns(9);
  auto database = *Database::Open(folder_ / "jobs.sqlite");
  Statement row = *database->Prepare("UPDATE curve SET body = ? WHERE kind = 1");
  ASSERT_OK(row.BindBlob(1, Seal(bucket)).Run());
  Reopen();
  EXPECT_THAT(store_->Buckets(id, CurveKind::kSteps, 0).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no names for its columns 9")));
}

}  // namespace
}  // namespace nsa::server
