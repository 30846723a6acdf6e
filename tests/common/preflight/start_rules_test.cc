// Where a job begins: preflight says it, and refuses what would waste or mix runs.
#include <gmock/gmock.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/estimate/schedule.h"
#include "tests/common/preflight/preflight_cases.h"

namespace nsa {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The problem of the finding of a rule; empty if there is none.
std::string ProblemOf(const v1::PreflightReport& report, const std::string& rule) {
  for (const v1::Finding& finding : report.findings()) {
    if (finding.rule() == rule) return finding.problem() + "; " + finding.fix();
  }
  return "";
}

TEST(Preflight, TakesTheOutDirOfItsOwnJob) {
  GoodJob job;
  job.Write("out/owner.json", R"({"job_id": "jmine", "job_hash": "00"})");
  EXPECT_FALSE(job.Check().accepted());
  job.context.job_id = "jmine";
  EXPECT_TRUE(job.Check().accepted());
  job.Write("out/owner.json", "not json");
  EXPECT_FALSE(job.Check().accepted());
}

TEST(Preflight, SaysWhereTheJobBegins) {
  GoodJob job;
  const std::string out = job.PathOf("out");
  EXPECT_EQ(job.Check().start(), "starts afresh in " + out);
  job.WriteCheckpoint("elsewhere/checkpoints/step-00000300", 300);
  job.spec.mutable_restart()->set_init(job.PathOf("elsewhere"));
  EXPECT_TRUE(job.Check().accepted());
  EXPECT_EQ(job.Check().start(),
            "starts with the weights of " + job.PathOf("elsewhere") + ", in " + out);
  job.spec.mutable_restart()->clear_init();
  job.spec.mutable_restart()->set_resume(job.PathOf("elsewhere"));
  EXPECT_TRUE(job.Check().accepted()) << "an out_dir means its newest checkpoint";
  EXPECT_THAT(job.Check().start(), StartsWith("continues from " + job.PathOf("elsewhere")));
  job.spec.mutable_restart()->set_resume("auto");
  job.WriteCheckpoint("out/checkpoints/step-00000120", 120);
  EXPECT_EQ(job.Check().start(), "continues from step 120 of " + out);
  EXPECT_THAT(FormatReport(job.Check(), "job.yaml"), HasSubstr("\ncontinues from step 120 of "));
  job.context.check_files = false;
  EXPECT_EQ(job.Check().start(), "");
}

TEST(Preflight, EstimatesOfAContinuedJobAreOfTheStepsThatAreLeft) {
  GoodJob job;
  const auto estimate = [&job](const std::string& name) {
    const v1::PreflightReport report = job.Check();
    for (const v1::EstimateItem& item : report.estimates()) {
      if (item.name() == name) return item.value();
    }
    return 0.0;
  };
  const auto steps = static_cast<double>(job.spec.train().steps());
  const double tokens = estimate("tokens in the run");
  const double seconds = estimate("expected time");
  job.WriteCheckpoint("elsewhere/checkpoints/step-00000300", 300);
  job.spec.mutable_restart()->set_resume(job.PathOf("elsewhere"));
  EXPECT_DOUBLE_EQ(estimate("tokens left in the run"), tokens * (steps - 300) / steps);
  EXPECT_DOUBLE_EQ(estimate("expected time"), seconds * (steps - 300) / steps);
  EXPECT_EQ(estimate("tokens in the run"), 0);
  job.spec.mutable_restart()->set_resume("auto");
  job.WriteCheckpoint("out/checkpoints/step-00000120", 120);
  EXPECT_DOUBLE_EQ(estimate("tokens left in the run"), tokens * (steps - 120) / steps);
}

TEST(Preflight, AFinishedJobIsTrainedFurtherWithTheFlagsThatNsactlPrints) {
  for (const auto schedule : {v1::LR_SCHEDULE_COSINE, v1::LR_SCHEDULE_LINEAR, v1::LR_SCHEDULE_WSD,
                              v1::LR_SCHEDULE_CONSTANT}) {
    GoodJob job;
    job.spec.mutable_train()->set_lr_schedule(schedule);
    const int64_t steps = job.spec.train().steps();
    job.WriteCheckpoint("out/checkpoints/step-00005000", steps);
    const std::string flags = FlagsToTrainFurther(job.spec.train());
    EXPECT_THAT(flags, StartsWith(absl::StrCat("--set train.steps=", 2 * steps)));
    job.spec.mutable_train()->set_steps(2 * steps);
    const bool consents = absl::StrContains(flags, " --set restart.allow_new_schedule=true");
    EXPECT_EQ(consents, schedule != v1::LR_SCHEDULE_CONSTANT);
    job.spec.mutable_restart()->set_allow_new_schedule(consents);
    EXPECT_EQ(ProblemOf(job.Check(), "SCHEDULE_CHANGED"), "") << flags;
  }
}

TEST(Preflight, OtherStepsNeedConsentOnlyWhereTheyMoveTheLearningRate) {
  GoodJob job;
  job.WriteCheckpoint("out/checkpoints/step-00003000", 3000);
  job.spec.mutable_train()->set_steps(10'000);
  EXPECT_THAT(ProblemOf(job.Check(), "SCHEDULE_CHANGED"),
              HasSubstr("restart.allow_new_schedule: true"));
  job.spec.mutable_restart()->set_allow_new_schedule(true);
  EXPECT_EQ(ProblemOf(job.Check(), "SCHEDULE_CHANGED"), "");
  GoodJob constant;
  constant.spec.mutable_train()->set_lr_schedule(v1::LR_SCHEDULE_CONSTANT);
  constant.WriteCheckpoint("out/checkpoints/step-00003000", 3000);
  constant.spec.mutable_train()->set_steps(10'000);
  EXPECT_TRUE(constant.Check().accepted()) << FormatReport(constant.Check(), "job.yaml");
}

TEST(Preflight, AJobThatWasStartedBeforeMayFindItsLastCheckpoint) {
  GoodJob job;
  job.WriteCheckpoint("out/checkpoints/step-00005000", 5000);
  EXPECT_FALSE(job.Check().accepted());
  job.context.job_id = "jmine";
  EXPECT_TRUE(job.Check().accepted()) << FormatReport(job.Check(), "job.yaml");
}

TEST(Preflight, PassesADamagedCheckpointAsTheWorkerDoes) {
  GoodJob job;
  job.WriteCheckpoint("out/checkpoints/step-00000120", 120);
  job.Write("out/checkpoints/step-00000240/state.json", "{}");
  EXPECT_EQ(job.Check().start(), "continues from step 120 of " + job.PathOf("out"));
  job.spec.mutable_nsa()->set_n_sel(8);
  EXPECT_THAT(ProblemOf(job.Check(), "OUT_DIR_DIFFERS"), HasSubstr("nsa.n_sel: 16 -> 8"));
  job.spec.mutable_nsa()->clear_n_sel();
  job.Write("out/checkpoints/step-00000120/state.json", "{}");
  EXPECT_EQ(job.Check().start(),
            "has 2 checkpoints in " + job.PathOf("out") + ", and none can be read");
  EXPECT_NE(ProblemOf(job.Check(), "OUT_DIR_UNREADABLE"), "");
  job.context.job_id = "jmine";
  EXPECT_EQ(ProblemOf(job.Check(), "OUT_DIR_UNREADABLE"), "") << "the worker says it";
  job.context.job_id.clear();
  job.spec.mutable_train()->set_out_dir(job.PathOf("fork"));
  job.spec.mutable_restart()->set_resume(job.PathOf("out"));
  EXPECT_NE(ProblemOf(job.Check(), "RESUME_MISMATCH"), "");
  job.WriteCheckpoint("out/checkpoints/step-00000120", 120);
  EXPECT_EQ(ProblemOf(job.Check(), "RESUME_MISMATCH"), "");
}

// The first start does what restart.resume says, with checkpoints in out_dir too.
TEST(Preflight, AStartBeginsWhereItsCheckSaidUntilTheJobHasRun) {
  GoodJob job;
  job.WriteCheckpoint("out/checkpoints/step-00000120", 120);
  job.WriteCheckpoint("elsewhere/checkpoints/step-00000300", 300);
  const std::string own = "continues from step 120 of " + job.PathOf("out");
  const auto at_launch = [&job](bool restarted) {
    job.context.job_id = "jmine";
    job.context.restarted = restarted;
    return job.Check();
  };
  job.spec.mutable_restart()->set_resume(job.PathOf("elsewhere"));
  const std::string named = "continues from " + job.PathOf("elsewhere") + ", in ";
  EXPECT_THAT(job.Check().start(), StartsWith(named));
  EXPECT_THAT(at_launch(/*restarted=*/false).start(), StartsWith(named));
  EXPECT_EQ(at_launch(/*restarted=*/true).start(), own);
  job.spec.mutable_restart()->set_resume("never");
  EXPECT_NE(ProblemOf(at_launch(false), "OUT_DIR_NOT_EMPTY"), "");
  EXPECT_EQ(ProblemOf(at_launch(true), "OUT_DIR_NOT_EMPTY"), "");
  EXPECT_EQ(at_launch(true).start(), own);
}

TEST(Preflight, WeightsMayComeFromAJobThatDiffersInWhatHasNoParameters) {
  GoodJob job;
  job.WriteCheckpoint("elsewhere/checkpoints/step-00000300", 300);
  job.spec.mutable_restart()->set_init(job.PathOf("elsewhere"));
  job.spec.mutable_nsa()->set_n_sel(8);
  job.spec.mutable_nsa()->set_w(256);
  job.spec.mutable_nsa()->set_gate(v1::GATE_SOFTMAX);
  job.spec.mutable_model()->set_rope_scale(2);
  job.spec.mutable_model()->set_qk_norm(true);
  job.spec.mutable_model()->set_activation(v1::ACTIVATION_RELU2);
  job.spec.mutable_model()->set_vocab(256);  // what 0 means
  EXPECT_TRUE(job.Check().accepted()) << FormatReport(job.Check(), "job.yaml");
  job.spec.mutable_nsa()->set_phi(v1::PHI_AVG);
  EXPECT_THAT(ProblemOf(job.Check(), "INIT_INVALID"), HasSubstr("nsa.phi: mlp -> avg"));
  job.spec.mutable_nsa()->set_phi(v1::PHI_MLP);
  job.spec.mutable_nsa()->clear_branches();
  job.spec.mutable_nsa()->add_branches(v1::BRANCH_SEL);
  job.spec.mutable_nsa()->add_branches(v1::BRANCH_WIN);
  EXPECT_THAT(ProblemOf(job.Check(), "INIT_INVALID"),
              HasSubstr("nsa.layers[0]: cmp+sel+win -> sel+win"));
}

TEST(Preflight, WeightsAndACheckpointToContinueFromExcludeEachOther) {
  GoodJob job;
  job.WriteCheckpoint("elsewhere/checkpoints/step-00000300", 300);
  job.spec.mutable_restart()->set_init(job.PathOf("elsewhere"));
  job.spec.mutable_restart()->set_resume(job.PathOf("elsewhere"));
  EXPECT_THAT(ProblemOf(job.Check(), "INIT_INVALID"), HasSubstr("together with restart.resume"));
}

}  // namespace
}  // namespace nsa
