// Which rules apply to a run: policy, length, waivers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "common/preflight/preflight.h"
#include "tests/common/preflight/preflight_cases.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Preflight, SaysNothingOfTheLengthOfAShortRun) {
  GoodJob job;
  Train(&job)->set_steps(100);
  EXPECT_EQ(FindingOf(job.Check(), "LONG_RUN"), nullptr);
}

TEST(Preflight, AWaivedErrorKeepsItsSeverityAndDoesNotRefuse) {
  GoodJob job;
  job.spec.mutable_runtime()->set_gradient_checkpointing(false);
  EXPECT_FALSE(job.Check().accepted());
  (*job.spec.mutable_preflight()->mutable_waive())["GRADIENT_CHECKPOINTING_OFF"] = "141 GiB";
  const v1::PreflightReport report = job.Check();
  EXPECT_TRUE(report.accepted());
  EXPECT_EQ(FindingOf(report, "GRADIENT_CHECKPOINTING_OFF")->severity(), v1::SEVERITY_ERROR);
}

TEST(Preflight, RefusesAWaiverWithoutAReason) {
  GoodJob job;
  job.spec.mutable_runtime()->set_gradient_checkpointing(false);
  (*job.spec.mutable_preflight()->mutable_waive())["GRADIENT_CHECKPOINTING_OFF"] = "  ";
  const v1::PreflightReport report = job.Check();
  EXPECT_FALSE(report.accepted());
  EXPECT_THAT(FindingOf(report, "WAIVER_INVALID")->problem(), HasSubstr("no reason"));
}

TEST(Preflight, SuggestsTheRuleThatAWaiverMeant) {
  GoodJob job;
  (*job.spec.mutable_preflight()->mutable_waive())["DISK_TO_SMALL"] = "why";
  EXPECT_EQ(FindingOf(job.Check(), "WAIVER_INVALID")->fix(), "did you mean DISK_TOO_SMALL?");
}

TEST(Preflight, AShortJobChoosesItsPolicy) {
  GoodJob job;
  Train(&job)->set_steps(4999);
  EXPECT_EQ(job.Check().policy(), v1::PREFLIGHT_POLICY_EXPERIMENT);
  job.spec.mutable_preflight()->set_policy(v1::PREFLIGHT_POLICY_PRODUCTION);
  EXPECT_EQ(job.Check().policy(), v1::PREFLIGHT_POLICY_PRODUCTION);
}

TEST(Preflight, AJobOfManyStepsIsProductionWhateverItCallsItself) {
  GoodJob job;
  job.spec.mutable_preflight()->set_policy(v1::PREFLIGHT_POLICY_EXPERIMENT);
  EXPECT_EQ(job.Check().policy(), v1::PREFLIGHT_POLICY_PRODUCTION);
  EXPECT_THAT(FindingOf(job.Check(), "LONG_RUN")->fix(), HasSubstr("preflight.waive"));
  job.MoveToCpu();
  EXPECT_EQ(job.Check().policy(), v1::PREFLIGHT_POLICY_PRODUCTION);
}

TEST(Preflight, AJobOfAnHourIsProductionWhateverItCallsItself) {
  GoodJob job;
  Train(&job)->set_steps(4999);
  job.spec.mutable_preflight()->set_policy(v1::PREFLIGHT_POLICY_EXPERIMENT);
  EXPECT_EQ(job.Check().policy(), v1::PREFLIGHT_POLICY_EXPERIMENT);
  Train(&job)->set_accumulate_grad_batches(100);
  EXPECT_EQ(job.Check().policy(), v1::PREFLIGHT_POLICY_PRODUCTION);
}

TEST(Preflight, ALaunchIsNotRefusedForALengthThatWasAcceptedAtSubmit) {
  GoodJob job;
  Train(&job)->set_save_every(0);
  Train(&job)->set_accumulate_grad_batches(100);
  EXPECT_FALSE(job.Check().accepted());
  job.context.job_id = "jmine";
  EXPECT_TRUE(job.Check().accepted()) << FormatReport(job.Check(), "");
}

// 50,000 steps of a toy in bf16 without a checkpoint.
TEST(Preflight, ALongToyWaivesTheProductionRulesOneByOne) {
  GoodJob job;
  job.spec.mutable_model()->set_dim(128);
  Train(&job)->set_steps(50'000);
  Train(&job)->set_save_every(0);
  job.spec.mutable_guard()->set_min_tokens_per_second(0);
  job.spec.mutable_preflight()->set_policy(v1::PREFLIGHT_POLICY_EXPERIMENT);
  auto* waivers = job.spec.mutable_preflight()->mutable_waive();
  for (const char* rule :
       {"NO_CHECKPOINT_CADENCE", "MODEL_TOO_SMALL_FOR_RUN", "THROUGHPUT_GUARD_OFF"}) {
    const v1::PreflightReport report = job.Check();
    ASSERT_NE(FindingOf(report, rule), nullptr) << rule;
    EXPECT_EQ(FindingOf(report, rule)->severity(), v1::SEVERITY_ERROR) << rule;
    EXPECT_FALSE(report.accepted()) << "before the waiver of " << rule;
    (*waivers)[rule] = "a toy";
  }
  EXPECT_TRUE(job.Check().accepted()) << FormatReport(job.Check(), "");
}

TEST(PreflightLength, AFloorThatTheWorkerMeasuresIsAGuard) {
  GoodJob job;
  job.spec.mutable_guard()->clear_min_tokens_per_second();
  EXPECT_TRUE(job.Check().accepted()) << FormatReport(job.Check(), "");
}

// Data and out_dir alone, on a machine that nobody knows: the advice of all rules is of one job,
// which is accepted.
TEST(Preflight, TheAdviceForAJobOfDefaultsAgreesAndIsEnough) {
  const GoodJob good;
  v1::JobSpec job;
  job.set_name("defaults");
  job.mutable_data()->set_source(v1::DATA_SOURCE_TEXT);
  job.mutable_data()->add_path(good.PathOf("train.txt"));
  job.mutable_train()->set_out_dir(good.PathOf("out"));
  const PreflightContext unknown = {.check_files = true};
  const v1::PreflightReport report = Preflight(job, unknown);
  const auto number = [&report](const std::string& rule, const std::string& key) {
    const v1::Finding* finding = FindingOf(report, rule);
    if (finding == nullptr) return 0;
    EXPECT_THAT(finding->fix(), StartsWith("set " + key + ": "));
    return std::atoi(finding->fix().substr(key.size() + 6).c_str());
  };
  const int save_every = number("NO_CHECKPOINT_CADENCE", "save_every");
  EXPECT_GT(save_every, 0);
  EXPECT_EQ(number("LOST_WORK", "save_every"), save_every);
  job.mutable_train()->set_save_every(save_every);
  job.mutable_train()->set_eval_every(number("EVAL_OFF", "eval_every"));
  const v1::PreflightReport advised = Preflight(job, unknown);
  EXPECT_TRUE(advised.accepted()) << FormatReport(advised, "job.yaml");
  for (const v1::Finding& finding : advised.findings()) {
    EXPECT_EQ(finding.severity(), v1::SEVERITY_INFO) << finding.rule() << finding.fix();
  }
}

// 8.7 hours in 4,999 steps were once accepted without a checkpoint.
TEST(Preflight, RefusesARunThatLosesMoreThanHalfAnHour) {
  GoodJob job;
  Train(&job)->set_steps(4999);
  Train(&job)->set_accumulate_grad_batches(500);
  Train(&job)->set_save_every(4999);
  const v1::PreflightReport report = job.Check();
  const v1::Finding* finding = FindingOf(report, "LOST_WORK");
  ASSERT_NE(finding, nullptr);
  EXPECT_EQ(finding->severity(), v1::SEVERITY_ERROR);
  EXPECT_THAT(finding->problem(), HasSubstr(" h of training between two checkpoints"));
  Train(&job)->set_save_every(0);
  const v1::PreflightReport without = job.Check();
  EXPECT_NE(FindingOf(without, "LOST_WORK"), nullptr) << "no checkpoint before the end";
  const std::string advice = FindingOf(without, "NO_CHECKPOINT_CADENCE")->fix();
  EXPECT_THAT(FindingOf(without, "LOST_WORK")->fix(), StartsWith(advice + " or less")) << advice;
  Train(&job)->set_save_every(1'000'000);
  EXPECT_NE(FindingOf(job.Check(), "LOST_WORK"), nullptr) << "none either";
  Train(&job)->set_save_every(100);
  EXPECT_EQ(FindingOf(job.Check(), "LOST_WORK"), nullptr);
}

TEST(Preflight, AdvisesASaveEveryThatLosesLittleEnough) {
  GoodJob job;
  Train(&job)->set_accumulate_grad_batches(500);
  Train(&job)->set_save_every(5000);
  const v1::PreflightReport refused = job.Check();
  const std::string fix = FindingOf(refused, "LOST_WORK")->fix();
  int save_every = 0;
  ASSERT_EQ(std::sscanf(fix.c_str(), "set save_every: %d", &save_every), 1) << fix;
  Train(&job)->set_save_every(save_every);
  EXPECT_EQ(FindingOf(job.Check(), "LOST_WORK"), nullptr);
  Train(&job)->set_save_every(save_every + 1);
  EXPECT_NE(FindingOf(job.Check(), "LOST_WORK"), nullptr);
  job.spec.mutable_preflight()->set_max_lost_seconds(7200);
  EXPECT_EQ(FindingOf(job.Check(), "LOST_WORK"), nullptr);
}

TEST(Preflight, WarnsOfAThroughputFloorFarBelowTheExpectedSpeed) {
  GoodJob job;
  job.spec.mutable_guard()->set_min_tokens_per_second(8000);
  const v1::PreflightReport report = job.Check();
  const v1::Finding* finding = FindingOf(report, "THROUGHPUT_GUARD_TOO_LOW");
  ASSERT_NE(finding, nullptr);
  EXPECT_EQ(finding->severity(), v1::SEVERITY_WARNING);
  EXPECT_THAT(finding->fix(), testing::ContainsRegex("half of the expected [0-9]+,[0-9]+ tok/s"));
  EXPECT_THAT(finding->fix(), HasSubstr("H200, measured 2026-11-27"));
}

}  // namespace
}  // namespace nsa
