#include "common/run/journal.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/run/atomic_file.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

v1::WorkerRecord Step(int64_t step) {
  v1::WorkerRecord record;
  record.mutable_step()->set_step(step);
  return record;
}

v1::WorkerRecord Event(const std::string& text) {
  v1::WorkerRecord record;
  record.mutable_event()->set_text(text);
  return record;
}

// Writes `count` step records and returns the file's path.
std::filesystem::path WriteSteps(const TempDir& folder, int count) {
  const std::filesystem::path path = folder / "journal";
  auto writer = JournalWriter::Create(path);
  EXPECT_OK(writer);
  for (int step = 1; step <= count; ++step) EXPECT_OK((*writer)->Append(Step(step)));
  return path;
}

// The steps of all records that the reader returns.
std::vector<int64_t> StepsOf(JournalReader* reader) {
  std::vector<int64_t> steps;
  while (true) {
    const auto record = reader->Next();
    EXPECT_OK(record);
    if (!record.ok() || !record->has_value()) return steps;
    EXPECT_EQ((*record)->sequence(), (*record)->step().step());
    steps.push_back((*record)->step().step());
  }
}

TEST(Journal, ReturnsRecordsInOrderWithSequenceAndTime) {
  const TempDir folder;
  const auto path = WriteSteps(folder, 3);
  JournalReader reader(path);
  const auto first = reader.Next();
  ASSERT_OK(first);
  ASSERT_TRUE(first->has_value());
  EXPECT_EQ((*first)->sequence(), 1);
  EXPECT_GT((*first)->unix_nanos(), 1'700'000'000'000'000'000);
  EXPECT_THAT(StepsOf(&reader), ::testing::ElementsAre(2, 3));
}

TEST(Journal, ReaderWaitsForAFileThatIsNotThereYet) {
  const TempDir folder;
  JournalReader reader(folder / "journal");
  EXPECT_THAT(StepsOf(&reader), ::testing::IsEmpty());
  WriteSteps(folder, 2);
  EXPECT_THAT(StepsOf(&reader), ::testing::ElementsAre(1, 2));
}

TEST(Journal, ReaderGoesOnAtAnOffset) {
  const TempDir folder;
  const auto path = WriteSteps(folder, 4);
  JournalReader first(path);
  ASSERT_OK(first.Next());
  ASSERT_OK(first.Next());
  JournalReader second(path, first.offset());
  EXPECT_THAT(StepsOf(&second), ::testing::ElementsAre(3, 4));
}

TEST(Journal, ATornTailOfAnyLengthIsNotReturnedAndNoError) {
  const TempDir folder;
  const auto path = WriteSteps(folder, 2);
  JournalReader whole(path);
  ASSERT_OK(whole.Next());
  const int64_t second_begins = whole.offset();
  const auto size = static_cast<int64_t>(std::filesystem::file_size(path));
  const std::string content = *ReadWholeFile(path);
  for (int64_t cut = second_begins; cut < size; ++cut) {
    const auto torn = folder / "torn";
    std::ofstream(torn, std::ios::binary).write(content.data(), cut);
    JournalReader reader(torn);
    EXPECT_THAT(StepsOf(&reader), ::testing::ElementsAre(1)) << "cut at " << cut;
    EXPECT_EQ(reader.offset(), second_begins);
    // The missing bytes are written: now the record is complete.
    std::ofstream(torn, std::ios::binary | std::ios::app).write(content.data() + cut, size - cut);
    EXPECT_THAT(StepsOf(&reader), ::testing::ElementsAre(2)) << "cut at " << cut;
  }
}

TEST(Journal, EveryFlippedBitOfARecordIsFoundOrWaitedFor) {
  const TempDir folder;
  const auto path = WriteSteps(folder, 1);
  const std::string content = *ReadWholeFile(path);
  for (size_t bit = 0; bit < content.size() * 8; ++bit) {
    std::string damaged = content;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    const auto copy = folder / "damaged";
    std::ofstream(copy, std::ios::binary) << damaged;
    JournalReader reader(copy);
    const auto record = reader.Next();
    // With a larger length the record may look incomplete, but never valid.
    if (record.ok()) {
      EXPECT_FALSE(record->has_value()) << "bit " << bit;
      EXPECT_LT(bit, 32U);
    } else {
      EXPECT_THAT(record, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("offset 0")));
    }
  }
}

TEST(Journal, DamageIsReportedWithItsOffsetAndStays) {
  const TempDir folder;
  const auto path = WriteSteps(folder, 3);
  JournalReader whole(path);
  ASSERT_OK(whole.Next());
  const int64_t second = whole.offset();
  std::string content = *ReadWholeFile(path);
  content[static_cast<size_t>(second) + 10] ^= 1;
  std::ofstream(path, std::ios::binary) << content;
  JournalReader reader(path);
  ASSERT_OK(reader.Next());
  for (int again = 0; again < 2; ++again) {
    EXPECT_THAT(reader.Next(), StatusIs(absl::StatusCode::kDataLoss,
                                        HasSubstr(absl::StrCat("checksum at offset ", second))));
  }
}

// Two bytes a layer: a record of 1 MiB would take 150 MB. The reader serves the ranks of all users.
TEST(Journal, ARecordThatWouldTakeFarMoreMemoryThanItsBytesIsDamage) {
  const TempDir folder;
  v1::WorkerRecord record = Step(1);
  for (int i = 0; i < 500'000; ++i) record.mutable_step()->add_layers();
  const auto path = folder / "journal";
  {
    auto writer = JournalWriter::Create(path);
    ASSERT_OK(writer);
    ASSERT_OK((*writer)->Append(std::move(record)));
  }
  JournalReader reader(path);
  EXPECT_THAT(reader.Next(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("too many elements")));
}

TEST(Journal, ARecordHasAtMostTwoMebibytes) {
  const TempDir folder;
  auto writer = JournalWriter::Create(folder / "journal");
  ASSERT_OK(writer);
  EXPECT_THAT((*writer)->Append(Event(std::string(3 << 20, 'x'))),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 2097152")));
  // Of another writer, and as long as the file says it is.
  std::string large(8, '\0');
  const uint32_t length = 3 << 20;
  std::memcpy(large.data(), &length, sizeof(length));
  std::ofstream(folder / "other", std::ios::binary) << large;
  EXPECT_THAT(JournalReader(folder / "other").Next(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("impossible length")));
}

TEST(Journal, RefusesAFileThatHoldsRecordsAlready) {
  const TempDir folder;
  const auto path = WriteSteps(folder, 1);
  EXPECT_THAT(JournalWriter::Create(path), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(Journal, AFullDeviceIsResourceExhausted) {
  auto writer = JournalWriter::Create("/dev/full");
  ASSERT_OK(writer);
  EXPECT_THAT((*writer)->Append(Step(1)), StatusIs(absl::StatusCode::kResourceExhausted));
}

// A file size limit acts like a full disk: first a short write, then an error.
TEST(Journal, ARecordThatFitsOnlyInPartIsCutOffAndTheNextOneFollows) {
  const TempDir folder;
  const auto path = folder / "journal";
  auto writer = JournalWriter::Create(path);
  ASSERT_OK(writer);
  ASSERT_OK((*writer)->Append(Event("first")));
  const auto size = std::filesystem::file_size(path);

  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit tight = {size + 20, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  const absl::Status partly = (*writer)->Append(Event(std::string(1000, 'x')));
  const auto size_after_failure = std::filesystem::file_size(path);
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, old_handler);

  EXPECT_THAT(partly, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(size_after_failure, size);
  ASSERT_OK((*writer)->Append(Event("second")));
  JournalReader reader(path);
  EXPECT_EQ((**reader.Next()).event().text(), "first");
  const auto second = *reader.Next();
  EXPECT_EQ(second->event().text(), "second");
  EXPECT_EQ(second->sequence(), 2) << "the record that was not written took no number";
}

TEST(Journal, AReaderThatTailsSeesEveryRecordOfFourWritersOnce) {
  const TempDir folder;
  const auto path = folder / "journal";
  auto writer = JournalWriter::Create(path);
  ASSERT_OK(writer);
  constexpr int kThreads = 4;
  constexpr int kRecords = 500;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&writer, t] {
      for (int i = 0; i < kRecords; ++i) {
        EXPECT_OK((*writer)->Append(Event(std::string(static_cast<size_t>(t * 997 + i), 'r'))));
      }
    });
  }
  JournalReader reader(path);
  int64_t next = 1;
  while (next <= kThreads * kRecords) {
    const auto record = reader.Next();
    ASSERT_OK(record);
    if (!record->has_value()) continue;
    ASSERT_EQ((*record)->sequence(), next);
    ++next;
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE((*reader.Next()).has_value());
}

}  // namespace
}  // namespace nsa
