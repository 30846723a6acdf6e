// Advice on batch, learning rate and decay: notes on long runs, beside published values.
#include <gmock/gmock.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/common/preflight/preflight_cases.h"

namespace nsa {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// "RULE field" of every note of advice on the good job after `change`.
std::vector<std::string> Advice(const std::function<void(v1::JobSpec*)>& change,
                                std::string* text = nullptr) {
  GoodJob job;
  change(&job.spec);
  std::vector<std::string> notes;
  const v1::PreflightReport report = job.Check();
  for (const v1::Finding& finding : report.findings()) {
    if (finding.rule().find("_ADVICE") == std::string::npos) continue;
    EXPECT_EQ(finding.severity(), v1::SEVERITY_INFO);
    notes.push_back(finding.rule() + " " + finding.field());
    if (text != nullptr) *text = finding.problem() + "; " + finding.fix();
  }
  return notes;
}

std::function<void(v1::JobSpec*)> WithLr(double lr) {
  return [lr](v1::JobSpec* spec) { spec->mutable_train()->set_lr(lr); };
}

TEST(LrAdvice, IsSilentWithinAFactorOfFourOfThePublishedRate) {
  EXPECT_THAT(Advice(WithLr(1.6e-4)), IsEmpty());
  EXPECT_THAT(Advice(WithLr(2.3e-3)), IsEmpty());
  EXPECT_THAT(Advice(WithLr(1.4e-4)), ElementsAre("LR_ADVICE train.lr"));
  EXPECT_THAT(Advice(WithLr(2.5e-3)), ElementsAre("LR_ADVICE train.lr"));
}

TEST(LrAdvice, KnowsThatLargerModelsTakeSmallerRates) {
  std::string text;
  const auto deep = [](v1::JobSpec* spec) {
    spec->mutable_model()->set_n_layers(200);  // 1.4 billion parameters
    spec->mutable_train()->set_lr(1e-3);
  };
  EXPECT_THAT(Advice(deep, &text), ElementsAre("LR_ADVICE train.lr"));
  EXPECT_THAT(text, AllOf(HasSubstr("0.001 (about 2.0e-04"), HasSubstr("arXiv 2005.14165"),
                          HasSubstr("try lr: 2.0e-04")));
}

TEST(LrAdvice, JudgesTheRateOfMuonsMatricesByItself) {
  const auto muon = [](double muon_lr) {
    return [muon_lr](v1::JobSpec* spec) {
      spec->mutable_train()->set_optimizer(v1::OPTIMIZER_MUON);
      spec->mutable_train()->set_lr(6e-4);
      if (muon_lr > 0) spec->mutable_train()->set_muon_lr(muon_lr);
    };
  };
  EXPECT_THAT(Advice(muon(3e-3)), IsEmpty());
  EXPECT_THAT(Advice(muon(0.02)), ElementsAre("LR_ADVICE train.muon_lr"));
  EXPECT_THAT(Advice(muon(0)), ElementsAre("LR_ADVICE train.muon_lr")) << "as small as lr";
}

TEST(Advice, ATunedModelMayHaveSmallerRatesAndAnotherBatchButNotLargerRates) {
  const auto tuned = [](double lr) {
    return [lr](v1::JobSpec* spec) {
      spec->mutable_restart()->set_init("/out/pretrained");
      spec->mutable_train()->set_lr(lr);
      spec->mutable_train()->set_weight_decay(0);
      spec->mutable_train()->set_steps(200'000);
    };
  };
  EXPECT_THAT(Advice(tuned(1e-5)), IsEmpty());
  EXPECT_THAT(Advice(tuned(2.5e-3)), ElementsAre("LR_ADVICE train.lr"));
}

TEST(BatchAdvice, FollowsTheComputeOfTheRun) {
  const auto run = [](int64_t steps, int32_t batch) {
    return [steps, batch](v1::JobSpec* spec) {
      spec->mutable_train()->set_steps(steps);
      spec->mutable_train()->set_batch_size(batch);
    };
  };
  std::string text;
  EXPECT_THAT(Advice(run(50'000, 2), &text), ElementsAre("BATCH_ADVICE train.batch_size"));
  EXPECT_THAT(text, AllOf(HasSubstr("4,096 tokens a step"), HasSubstr("arXiv 2401.02954"),
                          HasSubstr("times as large")));
  EXPECT_THAT(Advice(run(5'000, 32)), IsEmpty());
  EXPECT_THAT(Advice(run(5'000, 2)), IsEmpty()) << "less compute than the equation is for";
  EXPECT_THAT(Advice([](v1::JobSpec* spec) { spec->mutable_model()->set_n_layers(100); }),
              IsEmpty())
      << "20 million tokens for 660 million parameters";
}

TEST(DecayAdvice, LetsLongRunsFallToZero) {
  const auto run = [](double ratio, int64_t steps) {
    return [ratio, steps](v1::JobSpec* spec) {
      spec->mutable_train()->set_batch_size(32);
      spec->mutable_train()->set_steps(steps);
      spec->mutable_train()->set_min_lr_ratio(ratio);
    };
  };
  // 65,536 tokens a step and 82 million parameters: 20 tokens a parameter after 25,000 steps.
  EXPECT_THAT(Advice(run(0.1, 26'000)), ElementsAre("DECAY_ADVICE train.min_lr_ratio"));
  EXPECT_THAT(Advice(run(0.1, 24'000)), IsEmpty());
  EXPECT_THAT(Advice(run(0.0, 26'000)), IsEmpty());
}

TEST(Advice, IsForLongRunsOnly) {
  EXPECT_THAT(Advice([](v1::JobSpec* spec) {
                spec->mutable_train()->set_steps(400);
                spec->mutable_train()->set_lr(1e-6);
                spec->mutable_train()->set_weight_decay(0);
                spec->mutable_preflight()->set_policy(v1::PREFLIGHT_POLICY_EXPERIMENT);
              }),
              IsEmpty());
}

}  // namespace
}  // namespace nsa
