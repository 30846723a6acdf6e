// What one preflight may cost, however many files a job names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/job_file.h"
#include "common/base/json_shape.h"
#include "common/job/data/data_files.h"
#include "tests/common/preflight/preflight_cases.h"
#include "tests/testing/heap.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// The most that the heap holds while it lives, looked at every millisecond. The peak of the process
// would count what AddressSanitizer keeps of freed memory, up to 256 MiB.
class HeapPeak {
 public:
  int64_t Bytes() const { return most_; }

 private:
  std::atomic<int64_t> most_{0};
  std::jthread watch_{[this](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      most_ = std::max(most_.load(), HeapInUse());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }};
};

TEST(PreflightWork, ManyValidationFilesBesideManyTrainingFilesAreNoPairs) {
  constexpr int kFiles = 3'000;
  GoodJob job;
  // All of one size, with one beginning.
  const std::string start(70'000, 'x');
  Data(&job)->clear_path();
  Data(&job)->clear_val_path();
  for (int i = 0; i < kFiles; ++i) {
    const std::string name = absl::StrCat("same.", i, ".txt");
    if (i < 30) {
      job.Write(name, absl::StrCat(start, 1'000 + i));
      job.Write(absl::StrCat("val.", i, ".txt"), absl::StrCat(start, 2'000 + i));
    } else {
      std::filesystem::create_hard_link(job.PathOf("same.0.txt"), job.PathOf(name));
      std::filesystem::create_hard_link(job.PathOf("val.0.txt"),
                                        job.PathOf(absl::StrCat("val.", i, ".txt")));
    }
    Data(&job)->add_path(job.PathOf(name));
    Data(&job)->add_val_path(job.PathOf(absl::StrCat("val.", i, ".txt")));
  }
  const double began = CpuSeconds();
  EXPECT_EQ(FindingOf(job.Check(), "VAL_NOT_DISJOINT"), nullptr);
  EXPECT_LT(CpuSeconds() - began, 8);
  job.Write("val.7.txt", absl::StrCat(start, 1'007));
  const v1::PreflightReport report = job.Check();
  const v1::Finding* const finding = FindingOf(report, "VAL_NOT_DISJOINT");
  ASSERT_NE(finding, nullptr);
  EXPECT_THAT(finding->problem(), HasSubstr("same.7.txt"));
}

TEST(PreflightWork, OnePatternThreeHundredTimesIsRefusedInsteadOfKept) {
  GoodJob job;
  for (int i = 0; i < 2'000; ++i) job.Write(absl::StrCat("part.", i, ".txt"), "text\n");
  Data(&job)->clear_path();
  const int64_t before = HeapInUse();
  const HeapPeak peak;
  const auto check = [&job](int patterns, v1::PreflightReport* report) {
    while (Data(&job)->path_size() < patterns) Data(&job)->add_path(job.PathOf("part.*.txt"));
    const double began = CpuSeconds();
    *report = job.Check();
    return CpuSeconds() - began;
  };
  v1::PreflightReport report;
  const double first_too_many = check(51, &report);
  EXPECT_LT(check(300, &report), 2 * first_too_many) << "those after it were read as well";
  EXPECT_LT(peak.Bytes() - before, int64_t{64} << 20);
  EXPECT_GT(peak.Bytes() - before, int64_t{1} << 20);
  const v1::Finding* const finding = FindingOf(report, "DATA_UNREADABLE");
  ASSERT_NE(finding, nullptr);
  EXPECT_THAT(finding->problem(), HasSubstr("more than 100000 files"));
  EXPECT_EQ(finding->field(), "data.path[50]");
}

TEST(PreflightWork, FindingsOfARuleAreCounted) {
  GoodJob job;
  Data(&job)->clear_path();
  for (int i = 0; i < 500; ++i) Data(&job)->add_path(job.PathOf(absl::StrCat("missing.", i)));
  const v1::PreflightReport report = job.Check();
  int count = 0;
  std::string last;
  for (const v1::Finding& finding : report.findings()) {
    if (finding.rule() != "DATA_UNREADABLE") continue;
    ++count;
    last = finding.problem();
  }
  EXPECT_EQ(count, 100);
  EXPECT_THAT(last, HasSubstr("(and 400 more like this)"));
}

TEST(PreflightWork, NothingIsReadForACallerWhoHasLeft) {
  GoodJob job;
  for (int i = 0; i < 2'000; ++i) job.Write(absl::StrCat("part.", i, ".txt"), "text\n");
  PathExpander expander([] { return true; });
  EXPECT_EQ(expander.Expand(job.PathOf("part.*.txt")).status().code(),
            absl::StatusCode::kCancelled);
}

// Whoever can write to its folder takes it away between two looks at it.
TEST(PreflightWork, AFileMayGoAwayAtAnyMoment) {
  int removed = 0;
  for (int moment = 0; moment < 100; ++moment) {
    GoodJob job;
    int opened = 0;
    const JobFileScope scope({{}, "", [&] {
                                if (opened++ == moment) {
                                  removed += std::filesystem::remove(job.PathOf("train.txt"));
                                }
                                return false;
                              }});
    EXPECT_NO_THROW(job.Check()) << moment;
    if (opened <= moment) break;  // it was opened less often
  }
  EXPECT_GT(removed, 3);
}

// The rules, the hint and the estimate all ask for the memory of the text.
TEST(PreflightWork, ATextThatDoesNotFitIsMeasuredNoMoreOften) {
  const auto opened = [](int64_t memory) {
    GoodJob job;
    job.MoveToCpu();
    job.machine.memory_bytes = memory;
    int times = 0;
    const JobFileScope scope({{}, "", [&] {
                                ++times;
                                return false;
                              }});
    EXPECT_EQ(FindingOf(job.Check(), "HOST_MEMORY_EXCEEDED") == nullptr, memory > 24 << 20);
    return times;
  };
  EXPECT_EQ(opened(24 << 20), opened(int64_t{64} << 30));
}

TEST(JsonShape, KnowsWhatBecomesLargerThanItLooks) {
  std::string empties = "{\"shards\":[{}";
  for (int i = 0; i < 1'000'000; ++i) empties += ",{}";
  EXPECT_FALSE(IsAsLargeAsItLooks(empties + "]}"));
  std::string numbers = "[1";
  for (int i = 0; i < 1'000'000; ++i) numbers += ",1";
  EXPECT_FALSE(IsAsLargeAsItLooks(numbers + "]"));
  EXPECT_TRUE(IsAsLargeAsItLooks(absl::StrCat("{\"text\":\"", std::string(1'000'000, '{'), "\"}")));
  EXPECT_TRUE(
      IsAsLargeAsItLooks(absl::StrCat("{\"text\":\"\\\"", std::string(1'000'000, ','), "\"}")));
  std::string shards = "{\"shards\":[{}";
  for (int i = 0; i < 100'000; ++i) {
    absl::StrAppend(&shards, ",\n{\"name\": \"tokens-00001\", \"documents\": \"10\", \"hash\": \"",
                    std::string(64, 'a'), "\", \"other\": \"", std::string(64, 'b'), "\"}");
  }
  EXPECT_TRUE(IsAsLargeAsItLooks(shards + "]}"));
}

TEST(JsonShape, KnowsWhatIsNestedDeep) {
  const auto nested = [](int levels) {
    return std::string(levels, '[') + std::string(levels, ']');
  };
  EXPECT_TRUE(IsShallow(nested(100)));
  EXPECT_FALSE(IsShallow(nested(101)));
  EXPECT_TRUE(IsShallow("[" + nested(99) + "," + nested(99) + "]"));
  EXPECT_FALSE(IsShallow("{\"a\":" + nested(100) + "}"));
  EXPECT_TRUE(IsShallow("{\"a\\\"\":\"" + nested(1000) + "\"}"));
}

}  // namespace
}  // namespace nsa
