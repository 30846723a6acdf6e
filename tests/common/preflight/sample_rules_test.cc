// The rules about texts that a job writes while it trains, and what they are estimated to need.
#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "common/estimate/sampling.h"
#include "common/preflight/fork.h"
#include "tests/common/preflight/preflight_cases.h"

namespace nsa {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

v1::SampleSpec* Sample(GoodJob* job) { return job->spec.mutable_sample(); }

// "SEVERITY RULE: field: problem" of the findings about samples, after `change` of the good job.
std::vector<std::string> Found(const std::function<void(GoodJob*)>& change) {
  GoodJob job;
  Sample(&job)->add_prompts("Once upon a time");
  change(&job);
  std::vector<std::string> found;
  const v1::PreflightReport report = job.Check();
  for (const v1::Finding& finding : report.findings()) {
    if (!finding.rule().starts_with("SAMPLE_")) continue;
    EXPECT_FALSE(finding.fix().empty()) << finding.DebugString();
    const bool refuses = finding.severity() == v1::SEVERITY_ERROR;
    EXPECT_TRUE(!refuses || !report.accepted());
    found.push_back((refuses ? "error " : "warning ") + finding.rule() + ": " + finding.field() +
                    ": " + finding.problem());
  }
  return found;
}

double Estimate(const v1::PreflightReport& report, const std::string& name) {
  for (const v1::EstimateItem& item : report.estimates()) {
    if (item.name() == name) return item.value();
  }
  return -1;
}

TEST(SampleRules, APromptIsEnough) {
  EXPECT_THAT(Found([](GoodJob*) {}), IsEmpty());
  EXPECT_THAT(Found([](GoodJob* job) {
                Sample(job)->add_prompts("");  // begins a document
                Sample(job)->set_tokens(1);
                Sample(job)->set_temperature(0);
              }),
              IsEmpty());
}

TEST(SampleRules, EveryValueHasLimits) {
  EXPECT_THAT(Found([](GoodJob* job) {
                for (int i = 0; i < 7; ++i) Sample(job)->add_prompts(std::string(1000, 'a'));
                Sample(job)->set_tokens(1024);
                Sample(job)->set_temperature(10);
                job->spec.mutable_restart()->set_hang_timeout_seconds(3600);
              }),
              IsEmpty());
  EXPECT_THAT(Found([](GoodJob* job) {
                for (int i = 0; i < 8; ++i) Sample(job)->add_prompts("a");
              }),
              ElementsAre(StartsWith("error SAMPLE_RANGE: sample.prompts: 9")));
  EXPECT_THAT(Found([](GoodJob* job) { Sample(job)->add_prompts(std::string(1001, 'a')); }),
              ElementsAre(StartsWith("error SAMPLE_RANGE: sample.prompts[1]:")));
  EXPECT_THAT(Found([](GoodJob* job) { Sample(job)->add_prompts("caf\xc3"); }),
              ElementsAre("error SAMPLE_RANGE: sample.prompts[1]: not valid UTF-8"));
  for (const int tokens : {0, -1, 1025}) {
    EXPECT_THAT(Found([&](GoodJob* job) { Sample(job)->set_tokens(tokens); }),
                ElementsAre(HasSubstr("SAMPLE_RANGE: sample.tokens: " + std::to_string(tokens) +
                                      " (from 1 to 1024)")));
  }
  for (const double temperature : {-0.1, 10.5, std::nan("")}) {
    EXPECT_THAT(Found([&](GoodJob* job) { Sample(job)->set_temperature(temperature); }),
                ElementsAre(HasSubstr("SAMPLE_RANGE: sample.temperature: ")));
  }
}

TEST(SampleRules, KeysWithoutPromptsAreRefused) {
  EXPECT_THAT(
      Found([](GoodJob* job) {
        Sample(job)->clear_prompts();
        Sample(job)->set_tokens(9);
        Sample(job)->set_temperature(1);
      }),
      ElementsAre("error SAMPLE_UNUSED: sample.tokens: set, but sample.prompts has no text",
                  "error SAMPLE_UNUSED: sample.temperature: set, but sample.prompts has no text"));
}

TEST(SampleRules, ThereMustBeATokenizerAndAValidation) {
  EXPECT_THAT(Found([](GoodJob* job) { Train(job)->set_eval_every(0); }),
              ElementsAre(HasSubstr("error SAMPLE_IMPOSSIBLE: sample.prompts")));
  EXPECT_THAT(Found([](GoodJob* job) {
                Data(job)->set_source(v1::DATA_SOURCE_SYNTHETIC);
                Data(job)->clear_path();
                Data(job)->clear_val_path();
              }),
              ElementsAre(HasSubstr("the source generates tokens")));
  const auto token_files = [](GoodJob* job) {
    Data(job)->set_source(v1::DATA_SOURCE_TOKENS);
    Data(job)->set_separator("0");
    Data(job)->clear_tokenizer();
  };
  EXPECT_THAT(Found(token_files), ElementsAre(HasSubstr("which tokenizer wrote its token files")));
  EXPECT_THAT(Found([&](GoodJob* job) {
                token_files(job);
                Data(job)->set_tokenizer(v1::TOKENIZER_BYTE);
              }),
              IsEmpty());
}

TEST(SampleRules, TextsThatTakeTooLongAreAWarningThatMayBeWaived) {
  const auto slow = [](GoodJob* job) {
    job->MoveToCpu();
    Sample(job)->set_tokens(1024);
    for (int i = 0; i < 7; ++i) Sample(job)->add_prompts("a");
    job->spec.mutable_restart()->set_hang_timeout_seconds(100);
  };
  EXPECT_THAT(Found(slow), ElementsAre(HasSubstr("warning SAMPLE_SLOW: sample.prompts: ")));
  GoodJob job;
  Sample(&job)->add_prompts("Once upon a time");
  slow(&job);
  (*job.spec.mutable_preflight()->mutable_waive())["SAMPLE_SLOW"] = "the last ones are not needed";
  EXPECT_EQ(FindingOf(job.Check(), "SAMPLE_SLOW")->waived(), "the last ones are not needed");
}

TEST(SampleRules, MemoryAndTimeAreEstimatedOnlyWithPrompts) {
  GoodJob job;
  const double without = Estimate(job.Check(), "memory per rank");
  EXPECT_EQ(Estimate(job.Check(), "memory: decoder of samples"), -1);
  EXPECT_EQ(Estimate(job.Check(), "samples of a validation"), -1);
  Sample(&job)->add_prompts("Once upon a time");
  const v1::PreflightReport report = job.Check();
  const double decoder = Estimate(report, "memory: decoder of samples");
  EXPECT_GT(decoder, 1e5);
  EXPECT_EQ(Estimate(report, "memory per rank"), without + decoder);
  const double seconds = Estimate(report, "samples of a validation");
  Sample(&job)->add_prompts("Once upon a time");
  EXPECT_NEAR(Estimate(job.Check(), "samples of a validation"), 2 * seconds, 1e-9);
}

TEST(SampleSpec, DefaultsComeWithPromptsAndNothingWithoutAnyKey) {
  v1::JobSpec spec;
  spec.mutable_sample();
  ApplyDefaults(&spec);
  EXPECT_FALSE(spec.has_sample()) << "older workers would refuse the job";
  spec.mutable_sample()->add_prompts("");
  ApplyDefaults(&spec);
  EXPECT_EQ(spec.sample().tokens(), 64);
  EXPECT_EQ(spec.sample().temperature(), 0.8);
  spec.mutable_sample()->set_temperature(0);
  ApplyDefaults(&spec);
  EXPECT_EQ(spec.sample().temperature(), 0);
}

TEST(SampleSpec, ChangesInAResumedJobAreNoChangeOfTheModel) {
  const GoodJob job;
  v1::JobSpec other = job.spec;
  other.mutable_sample()->add_prompts("To be");
  EXPECT_EQ(FixedDifferences(job.spec, other), "");
  EXPECT_EQ(ForkDifferences(job.spec, other), "");
  EXPECT_EQ(JobHash(job.spec), JobHash(other));
  other.mutable_train()->set_lr(0.5);
  EXPECT_THAT(FixedDifferences(job.spec, other), HasSubstr("train.lr"));
}

TEST(SampleSpec, AYamlListOrOneTextIsTaken) {
  v1::JobSpec spec;
  ASSERT_TRUE(LoadYamlText("sample: {prompts: [\"\", To be], tokens: 9}", "a.yaml", &spec).ok());
  EXPECT_THAT(spec.sample().prompts(), ElementsAre("", "To be"));
  ASSERT_TRUE(LoadYamlText("sample: {prompts: To be}", "a.yaml", &spec).ok());
  EXPECT_THAT(spec.sample().prompts(), ElementsAre("To be"));
}

}  // namespace
}  // namespace nsa
