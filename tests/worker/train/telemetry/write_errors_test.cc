// Telemetry on a full disk.
#include "worker/train/telemetry/write_errors.h"

#include <sys/mount.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/testing/file_size_limit.h"
#include "tests/worker/train/telemetry/reporting.h"
#include "worker/train/telemetry/buffered_journal.h"

namespace nsa::train {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using testing::UnorderedElementsAre;

std::vector<v1::WorkerRecord> RecordsOf(const std::filesystem::path& journal) {
  std::vector<v1::WorkerRecord> records;
  JournalReader reader(journal);
  for (auto record = reader.Next(); record.ok() && record->has_value(); record = reader.Next()) {
    records.push_back(**record);
  }
  return records;
}

// For ten steps no file can grow, nor can the journal. The errors are reported, no record of the
// journal is lost, and one event reports that everything is written again.
TEST(Reporter, WhatAFullDiskRefusesIsToldAndTheJournalCatchesUp) {
  const TempDir dir;
  ReporterOptions options = Options(dir);
  options.spec.mutable_train()->set_log_every(1);
  options.journal = dir / "journal";
  options.restored_after = absl::ZeroDuration();
  auto reporter = Reporter::Open(options);
  ASSERT_OK(reporter);
  (*reporter)->Step(Step(1));
  (*reporter)->Flush();
  EXPECT_EQ((*reporter)->error(), "");
  {
    const FileSizeLimit full(1);
    for (int step = 2; step <= 11; ++step) (*reporter)->Step(Step(step));
    (*reporter)->Flush();
    EXPECT_THAT((*reporter)->error(),
                AllOf(HasSubstr(dir.path().string()), HasSubstr("File too large")));
    EXPECT_EQ(RecordsOf(dir / "journal").size(), 1u);
  }
  (*reporter)->Step(Step(12));
  (*reporter)->Flush();
  EXPECT_EQ((*reporter)->error(), "");
  (*reporter)->Step(Step(13));
  (*reporter)->Flush();

  const std::vector<v1::WorkerRecord> records = RecordsOf(dir / "journal");
  int64_t steps = 0, nanos = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].sequence(), static_cast<int64_t>(i) + 1);
    if (!records[i].has_step()) continue;
    EXPECT_EQ(records[i].step().step(), ++steps);
    EXPECT_GE(records[i].unix_nanos(), nanos) << "when it was reported";
    nanos = records[i].unix_nanos();
  }
  EXPECT_EQ(steps, 13);
  const std::string gone = absl::StrCat((*reporter)->dropped(), " rows are missing in out_dir");
  EXPECT_THAT(
      Events(dir / "journal"),
      UnorderedElementsAre(
          AllOf(StartsWith("TELEMETRY_FAILED journal in " + dir.path().string()),
                HasSubstr("no room for a record (File too large)")),
          AllOf(StartsWith("TELEMETRY_FAILED"), HasSubstr("/out/"), HasSubstr("File too large")),
          AllOf(StartsWith("TELEMETRY_RESTORED"), HasSubstr(gone),
                HasSubstr("0 records in the journal"))));
  // Header, steps 1, 12, 13.
  EXPECT_EQ(Lines(dir / "out/training.csv").size(), 4u);
}

TEST(Reporter, AFullDiskOfOutDirIsToldWithItsSize) {
  const TempDir dir;
  std::filesystem::create_directory(dir / "out");
  if (mount("tmpfs", (dir / "out").c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "a small file system cannot be mounted here";
  }
  {
    ReporterOptions options = Options(dir);
    options.spec.mutable_train()->set_log_every(1);
    options.journal = dir / "journal";
    options.restored_after = absl::ZeroDuration();
    auto reporter = Reporter::Open(options);
    ASSERT_OK(reporter);
    {
      std::ofstream ballast(dir / "out/ballast");
      while (ballast << std::string(4096, 'x') << std::flush) continue;
    }
    int64_t step = 0;
    while (step < 100 && (*reporter)->error().empty()) {  // until the last pages are full
      (*reporter)->Step(Step(++step));
      (*reporter)->Flush();
    }
    EXPECT_THAT((*reporter)->error(), HasSubstr("No space left on device (0.0 of 1"));
    std::filesystem::remove(dir / "out/ballast");
    (*reporter)->Step(Step(++step));
    (*reporter)->Flush();
    EXPECT_EQ((*reporter)->error(), "");
    EXPECT_THAT(Events(dir / "journal"),
                ElementsAre(HasSubstr("TELEMETRY_FAILED"), HasSubstr("TELEMETRY_RESTORED")));
  }
  umount((dir / "out").c_str());
}

TEST(BufferedJournal, OfMoreThanItHoldsTheOldestStepsAreLost) {
  const TempDir dir;
  auto writer = JournalWriter::Create(dir / "journal");
  ASSERT_OK(writer);
  BufferedJournal journal(*std::move(writer), 3);
  const auto step = [](int64_t number) {
    v1::WorkerRecord record;
    *record.mutable_step() = Step(number);
    return record;
  };
  v1::WorkerRecord checkpoint;
  checkpoint.mutable_checkpoint()->set_step(1);
  {
    const FileSizeLimit full(1);
    EXPECT_FALSE(journal.Append(checkpoint).ok());
    for (int number = 2; number <= 5; ++number) EXPECT_FALSE(journal.Append(step(number)).ok());
  }
  EXPECT_EQ(journal.lost(), 2);
  ASSERT_OK(journal.Append(step(6)));
  const std::vector<v1::WorkerRecord> records = RecordsOf(dir / "journal");
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[0].checkpoint().step(), 1);
  for (int i = 1; i <= 3; ++i) EXPECT_EQ(records[i].step().step(), 3 + i);
}

TEST(WriteErrors, EndWhenWhatFailedIsWrittenAndNothingHasFailedForAWhile) {
  const absl::Status full = absl::ResourceExhaustedError("full");
  const auto at = [](int seconds) { return absl::Seconds(seconds); };
  WriteErrors errors(absl::Seconds(10));
  EXPECT_FALSE(errors.Record("disk", "a", absl::OkStatus(), at(0)));
  EXPECT_FALSE(errors.CheckRestored(at(100))) << "there was none";
  EXPECT_TRUE(errors.Record("disk", "a", full, at(100)));
  errors.SetText("full");
  EXPECT_FALSE(errors.Record("disk", "b", full, at(101))) << "reported already";
  EXPECT_TRUE(errors.Record("disk", "b", absl::DataLossError("torn"), at(102)));
  EXPECT_TRUE(errors.Record("journal", "journal", full, at(103))) << "another disk";
  for (const char* file : {"a", "journal"}) errors.Record("", file, absl::OkStatus(), at(104));
  EXPECT_FALSE(errors.CheckRestored(at(200))) << "b still fails";
  errors.Record("disk", "b", absl::OkStatus(), at(200));
  EXPECT_FALSE(errors.Record("disk", "", full, at(201))) << "a file nobody waits for";
  EXPECT_FALSE(errors.CheckRestored(at(210)));
  EXPECT_EQ(errors.text(), "full");
  EXPECT_TRUE(errors.CheckRestored(at(211)));
  EXPECT_EQ(errors.text(), "");
  EXPECT_FALSE(errors.CheckRestored(at(300))) << "reported once";
  EXPECT_TRUE(errors.Record("disk", "a", full, at(301))) << "again";
}

}  // namespace
}  // namespace nsa::train
