// What the texts of a job that trains depend on, and what ends them.
#include "worker/train/score/job_samples.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/score/small_trained.h"
#include "worker/train/score/text_model.h"
#include "worker/train/score/utf8.h"

namespace nsa::train {
namespace {

using ::testing::HasSubstr;

// Each look at it takes a second.
class SlowClock final : public Clock {
 public:
  absl::Time Wall() const override { return absl::UnixEpoch(); }
  absl::Duration Monotonic() const override { return absl::Seconds(++seconds_); }

 private:
  mutable int64_t seconds_ = 0;
};

class JobSamplesTest : public ::testing::Test {
 protected:
  JobSamplesTest() : trained_(SmallModel(dir_)), spec_(trained_->spec()) {
    for (const char* prompt : {"To be", "", "To be"}) spec_.mutable_sample()->add_prompts(prompt);
    spec_.mutable_sample()->set_tokens(40);
    ApplyDefaults(&spec_);
  }

  std::vector<v1::SampleRecord> Write(int64_t step) {
    const TextModel model = trained_->text_model();
    JobSamples samples({.spec = &spec_,
                        .parameters = model.parameters,
                        .clock = &clock_,
                        .exec = model.exec,
                        .on_token = [this](int32_t) { ++tokens_; }});
    return samples.Write(step);
  }

  const TempDir dir_;
  const std::unique_ptr<TrainedModel> trained_;
  v1::JobSpec spec_;
  SlowClock clock_;
  int tokens_ = 0;
};

TEST_F(JobSamplesTest, ATextDependsOnPromptPlaceStepAndSeedAlone) {
  spec_.mutable_restart()->set_hang_timeout_seconds(86400);
  const auto first = Write(5);
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(tokens_, 120);
  for (const v1::SampleRecord& record : first) {
    EXPECT_EQ(record.error(), "");
    EXPECT_EQ(record.tokens(), 40);
    EXPECT_EQ(ValidUtf8(record.text()), record.text());
  }
  EXPECT_NE(first[0].text(), first[2].text()) << "the same prompt in another place";
  EXPECT_EQ(Write(5)[2].text(), first[2].text());
  EXPECT_NE(Write(6)[2].text(), first[2].text());
  spec_.mutable_sample()->set_prompts(1, "another text before it");
  EXPECT_EQ(Write(5)[2].text(), first[2].text());
  spec_.mutable_train()->set_seed(8);
  EXPECT_NE(Write(5)[2].text(), first[2].text());
}

// The model knows nothing: about one byte in eight is a control character.
TEST_F(JobSamplesTest, ATextKeepsItsControlCharacters) {
  spec_.mutable_restart()->set_hang_timeout_seconds(86400);
  spec_.mutable_sample()->set_tokens(400);
  const std::string text = Write(5)[0].text();
  EXPECT_TRUE(std::ranges::any_of(text, [](char c) { return c > 0 && c < '\t'; })) << text;
}

TEST_F(JobSamplesTest, TheTextsOfAStepTakeAQuarterOfTheHangTimeoutAtMost) {
  spec_.mutable_restart()->set_hang_timeout_seconds(80);
  const auto records = Write(5);
  EXPECT_GT(records[0].tokens(), 0);
  EXPECT_LT(records[0].tokens(), 40);
  EXPECT_EQ(records[2].tokens(), 0) << "none begins when the time is over";
  for (const v1::SampleRecord& record : records) {
    EXPECT_EQ(record.text(), "") << "a part would depend on the machine";
    EXPECT_THAT(record.error(), HasSubstr("more than 20s"));
  }
}

TEST_F(JobSamplesTest, ATokenizerThatDoesNotFitIsAnErrorOfEveryRecord) {
  spec_.mutable_model()->set_vocab(64);
  for (const v1::SampleRecord& record : Write(5)) {
    EXPECT_THAT(record.error(), HasSubstr("model.vocab: 64"));
  }
}

}  // namespace
}  // namespace nsa::train
