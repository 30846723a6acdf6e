// What a report looks like to people, with places and keys of the Python system.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/preflight/preflight.h"
#include "tests/common/preflight/preflight_cases.h"

namespace nsa {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(PreflightReport, GivesEveryFindingItsPlaceOrItsSections) {
  GoodJob job;
  job.spec.mutable_train()->set_keep_checkpoints(1);
  job.spec.mutable_guard()->set_min_tokens_per_second(0);
  v1::PreflightReport report = job.Check();
  AddPlaces({{"train", {4, 1}}, {"train.keep_checkpoints", {5, 3}}, {"guard", {9, 1}}}, &report);
  EXPECT_EQ(FindingOf(report, "KEEP_CHECKPOINTS_TOO_FEW")->line(), 5);
  EXPECT_FALSE(FindingOf(report, "KEEP_CHECKPOINTS_TOO_FEW")->absent());
  EXPECT_EQ(FindingOf(report, "THROUGHPUT_GUARD_OFF")->line(), 9);  // the key is not in the file
  EXPECT_TRUE(FindingOf(report, "THROUGHPUT_GUARD_OFF")->absent());
}

TEST(PreflightReport, SaysWhichKeysAreAbsentAndShowsTheFilesBeginningWithoutTheirSection) {
  GoodJob job;
  job.spec.mutable_guard()->set_min_tokens_per_second(0);
  v1::PreflightReport report = job.Check();
  AddPlaces({{"train", {4, 1}}, {"name", {2, 1}}, {"train.steps", {5, 3}}}, &report);
  EXPECT_THAT(FormatReport(report, "job.yaml"),
              HasSubstr("job.yaml:2:1: error THROUGHPUT_GUARD_OFF"));
  // Said by --set: neither absent nor anywhere in the file.
  AddPlaces({{"train", {4, 1}}, {"guard.min_tokens_per_second", {0, 0}}}, &report);
  EXPECT_THAT(FormatReport(report, "job.yaml"), HasSubstr("job.yaml: error THROUGHPUT_GUARD_OFF"));
}

TEST(PreflightReport, AnElementOfAListThatIsInTheFileIsNotAbsent) {
  v1::PreflightReport report;
  report.add_findings()->set_field("data.path[0]");
  AddPlaces({{"data", {2, 1}}, {"data.path", {3, 3}}}, &report);  // path: a.txt
  EXPECT_FALSE(report.findings(0).absent());
  EXPECT_EQ(report.findings(0).line(), 3);
  AddPlaces({{"data", {2, 1}}}, &report);
  EXPECT_TRUE(report.findings(0).absent());
}

TEST(PreflightReport, PrintsAFindingOnOneLineWithPlaceRuleProblemAndFix) {
  GoodJob job;
  job.spec.mutable_train()->set_keep_checkpoints(1);
  v1::PreflightReport report = job.Check();
  AddPlaces({{"train.keep_checkpoints", {5, 3}}}, &report);
  EXPECT_THAT(FormatReport(report, "job.yaml"), HasSubstr("job.yaml:5:3: error KEEP_CHECKPOINTS"));
  EXPECT_THAT(FormatReport(report, "job.yaml"), HasSubstr("refused: 1 error (policy: production)"));
}

TEST(PreflightReport, PrintsAnAlignedTableOfMemoryDiskTimeAndTokens) {
  GoodJob job;
  const std::string text = FormatReport(job.Check(), "job.yaml");
  for (const char* part : {"81,591,588", "memory: master weights", "memory per rank",
                           "disk for checkpoints", "tokens in the run", "expected time", " GiB"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  size_t width = 0;
  size_t begin = text.find("Estimate\n") + 9;
  for (size_t end; (end = text.find('\n', begin)) != begin; begin = end + 1) {
    if (width == 0) width = end - begin;
    EXPECT_EQ(end - begin, width) << text.substr(begin, end - begin);
  }
  EXPECT_THAT(text, testing::EndsWith("accepted (policy: production)\n"));
}

TEST(PreflightReport, SaysWhereTheExpectedSpeedIsFrom) {
  GoodJob job;
  EXPECT_THAT(FormatReport(job.Check(), "job.yaml"),
              HasSubstr("  expected speed (H200, measured 2026-11-27) "));
  job.machine.gpus[0].name = "NVIDIA A100-SXM4-80GB";
  EXPECT_THAT(FormatReport(job.Check(), "job.yaml"),
              HasSubstr("  expected speed (A100, estimated from runs on an H100) "));
  job.machine.gpus[0].name = "NVIDIA T4";
  EXPECT_THAT(
      FormatReport(job.Check(), "job.yaml"),
      HasSubstr("  expected speed (NVIDIA T4 taken for an A100, estimated from runs on an H100) "));
  job.context.machine = nullptr;
  EXPECT_THAT(
      FormatReport(job.Check(), "job.yaml"),
      HasSubstr("  expected speed (machine unknown; A100, estimated from runs on an H100) "));
  job.context.machine = &job.machine;
  job.MoveToCpu();
  EXPECT_THAT(FormatReport(job.Check(), "job.yaml"),
              HasSubstr("  expected speed (2 CPU cores, measured 2026-11-20) "));
}

TEST(PreflightReport, ShowsTheGpuAndItsFreeMemory) {
  GoodJob job;
  job.machine.gpus[0] = {"NVIDIA A100", int64_t{80} << 30, int64_t{79} << 30, 80};
  const std::string text = FormatReport(job.Check(), "job.yaml");
  EXPECT_THAT(text, ContainsRegex("GPU memory, NVIDIA A100 +80.00 GiB\n"
                                  "  free memory now +79.00 GiB\n"));
  // Of two ranks the second meets the GPU with less.
  job.machine.gpus.push_back({"NVIDIA A30", int64_t{24} << 30, int64_t{20} << 30, 80});
  job.spec.mutable_resources()->set_gpus(2);
  EXPECT_THAT(FormatReport(job.Check(), "job.yaml"),
              ContainsRegex("GPU memory, NVIDIA A30 +24.00 GiB\n"));
  job.context.machine = nullptr;
  EXPECT_THAT(FormatReport(job.Check(), "job.yaml"), Not(HasSubstr("GPU memory")));
}

TEST(PreflightReport, ShowsWaivers) {
  GoodJob job;
  job.spec.mutable_runtime()->set_gradient_checkpointing(false);
  (*job.spec.mutable_preflight()->mutable_waive())["GRADIENT_CHECKPOINTING_OFF"] = "141 GiB";
  EXPECT_THAT(FormatReport(job.Check(), "job.yaml"), HasSubstr("[waived: 141 GiB]"));
}

TEST(PreflightReport, ShowsKeysOfThePythonSystemAsWarnings) {
  GoodJob job;
  v1::PreflightReport report = job.Check();
  LoadResult source;
  source.legacy.push_back({"runtime.use_flash", {7, 3}, "has no effect"});
  AddLegacyKeys(source, &report);
  EXPECT_TRUE(report.accepted());
  EXPECT_THAT(FormatReport(report, "job.yaml"), HasSubstr("job.yaml:7:3: warning LEGACY_KEY"));
}

}  // namespace
}  // namespace nsa
