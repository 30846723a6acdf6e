#include "common/run/status_page.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/run/atomic_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

TEST(StatusPage, ReadsBackWhatWasSaid) {
  const TempDir folder;
  auto page = StatusPage::Create(folder / "status", 1, 2, 3);
  ASSERT_OK(page);
  page->SetStep(120);
  page->SetMicroStep(1);
  page->SetPhase(Phase::kForward);
  page->SetLayer(7);
  page->SetKernel("window_attention");
  page->EnterCollective("all_reduce");
  const auto status = ReadStatusPage(folder / "status");
  ASSERT_OK(status);
  EXPECT_EQ(status->pid, getpid());
  EXPECT_EQ(status->generation, 3);
  EXPECT_EQ(status->progress, 6);
  EXPECT_EQ(status->collective_sequence, 1);
  EXPECT_EQ(status->ToString(status->updated_monotonic_nanos + 200'000'000),
            absl::StrCat("rank 1/2 gen 3 pid ", getpid(),
                         ": step 120 micro 1 forward layer 7 waiting in all_reduce #1, 0.2 s ago"));
  page->LeaveCollective();
  EXPECT_EQ(ReadStatusPage(folder / "status")->collective, "");
}

TEST(StatusPage, TouchIsASignOfLifeWithoutNews) {
  const TempDir folder;
  auto page = StatusPage::Create(folder / "status", 0, 1, 1);
  ASSERT_OK(page);
  const auto before = ReadStatusPage(folder / "status");
  page->Touch();
  const auto after = ReadStatusPage(folder / "status");
  EXPECT_EQ(after->progress, before->progress + 1);
  EXPECT_GE(after->updated_monotonic_nanos, before->updated_monotonic_nanos);
  EXPECT_EQ(after->phase, Phase::kStarting);
  EXPECT_EQ(after->layer, -1);
}

TEST(StatusPage, SaysWhyTelemetryIsNotWrittenInWholeCodePoints) {
  const TempDir folder;
  auto page = StatusPage::Create(folder / "status", 0, 1, 1);
  ASSERT_OK(page);
  EXPECT_EQ(ReadStatusPage(folder / "status")->telemetry_error, "");
  page->SetTelemetryError("training.csv: No space left on device");
  EXPECT_EQ(ReadStatusPage(folder / "status")->telemetry_error,
            "training.csv: No space left on device");
  std::string umlauts = "x";  // the second byte of each ü is at an even offset
  while (umlauts.size() < 600) umlauts += "\u00fc";
  page->SetTelemetryError(umlauts);
  EXPECT_EQ(ReadStatusPage(folder / "status")->telemetry_error, umlauts.substr(0, 511));
  page->SetTelemetryError("x" + umlauts);
  EXPECT_EQ(ReadStatusPage(folder / "status")->telemetry_error, ("x" + umlauts).substr(0, 510));
  page->SetTelemetryError("");
  EXPECT_EQ(ReadStatusPage(folder / "status")->telemetry_error, "");
}

TEST(StatusPage, CutsALongKernelName) {
  const TempDir folder;
  auto page = StatusPage::Create(folder / "status", 0, 1, 1);
  ASSERT_OK(page);
  page->SetKernel(std::string(100, 'k'));
  EXPECT_EQ(ReadStatusPage(folder / "status")->kernel, std::string(47, 'k'));
}

TEST(StatusPage, APhaseOfANewerBuildIsNamedByItsNumber) {
  EXPECT_EQ(PhaseName(Phase::kLoadingCheckpoint), "loading_checkpoint");
  EXPECT_EQ(PhaseName(static_cast<Phase>(17)), "unknown(17)");
}

TEST(StatusPage, APageInMemoryNeedsNoFileAndMoves) {
  StatusPage page;
  page.SetStep(1);
  StatusPage other = std::move(page);
  other.SetKernel("gate");
  page = StatusPage();
  page.SetStep(2);
}

TEST(StatusPage, AMissingFileIsNotFoundAndAForeignOneDataLoss) {
  const TempDir folder;
  EXPECT_THAT(ReadStatusPage(folder / "none"), StatusIs(absl::StatusCode::kNotFound));
  std::ofstream(folder / "short") << "short";
  EXPECT_THAT(ReadStatusPage(folder / "short"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("has 5 bytes (must have 4096)")));
  std::ofstream(folder / "foreign") << std::string(4096, 'f');
  EXPECT_THAT(ReadStatusPage(folder / "foreign"), StatusIs(absl::StatusCode::kDataLoss));
}

// Its writer may cut it off at any moment.
TEST(StatusPage, AFileWithFewerBytesThanItsSizeSaysDoesNotEndTheReader) {
  // A file of sysfs has the size of a page.
  EXPECT_THAT(ReadStatusPage("/sys/devices/system/cpu/online"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("status page: it became shorter")));
}

TEST(StatusPage, ReadersNeverSeeAMixtureOfTwoUpdates) {
  const TempDir folder;
  auto page = StatusPage::Create(folder / "status", 0, 1, 1);
  ASSERT_OK(page);
  page->EnterCollective("0");
  std::atomic<bool> done = false;
  std::thread writer([&] {
    // The name and number of a collective are written in one update, so they must always match.
    for (int i = 1; !done.load(std::memory_order_relaxed); ++i) {
      page->EnterCollective(absl::StrCat(std::string(static_cast<size_t>(i % 30), '0'), i));
    }
  });
  for (int reads = 0; reads < 1000; ++reads) {
    const auto status = ReadStatusPage(folder / "status");
    ASSERT_OK(status);
    ASSERT_EQ(std::stoll(status->collective), status->collective_sequence - 1);
  }
  done = true;
  writer.join();
}

TEST(StatusPage, ThePageOfADeadWriterIsStillRead) {
  const TempDir folder;
  {
    auto page = StatusPage::Create(folder / "status", 0, 1, 1);
    ASSERT_OK(page);
    page->SetStep(7);
  }
  EXPECT_EQ(ReadStatusPage(folder / "status")->step, 7);
}

TEST(StatusPage, AWriterThatDiedInAnUpdateIsUnavailable) {
  const TempDir folder;
  const auto path = folder / "status";
  ASSERT_OK(StatusPage::Create(path, 0, 1, 1));
  std::string content = *ReadWholeFile(path);
  const uint64_t odd = 5;  // The word after the magic number is the sequence number.
  std::memcpy(content.data() + 8, &odd, sizeof odd);
  std::ofstream(path, std::ios::binary) << content;
  EXPECT_THAT(ReadStatusPage(path), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(StatusPage, AnUpdateIsCheap) {
  const TempDir folder;
  auto page = StatusPage::Create(folder / "status", 0, 1, 1);
  ASSERT_OK(page);
  const auto start = std::chrono::steady_clock::now();
  constexpr int kUpdates = 100'000;
  for (int i = 0; i < kUpdates; ++i) page->SetKernel("compressed_attention");
  const std::chrono::duration<double, std::nano> each =
      (std::chrono::steady_clock::now() - start) / kUpdates;
  // An update takes about 40 ns. The limit leaves room for a busy machine.
  EXPECT_LT(each.count(), 5000);
  RecordProperty("nanoseconds", absl::StrCat(each.count()));
}

}  // namespace
}  // namespace nsa
