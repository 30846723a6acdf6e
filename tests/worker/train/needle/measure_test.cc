#include "worker/train/needle/measure.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/score/small_trained.h"
#include "worker/train/score/sample.h"

namespace nsa::train {
namespace {

using testing::HasSubstr;

std::string TextOf(const TextTokenizer& tokenizer, const std::vector<int32_t>& tokens) {
  std::string text;
  for (const int32_t token : tokens) text += tokenizer.Decode(token);
  return text;
}

class MeasureTest : public testing::Test {
 protected:
  absl::StatusOr<std::vector<NeedleCell>> Measure(const NeedleOptions& options) {
    return MeasureNeedles(*trained_, Filler(), options);
  }
  std::string WhyNot(const NeedleOptions& options) {
    return std::string(Measure(options).status().message());
  }

  const TempDir dir_;
  const std::unique_ptr<TrainedModel> trained_ = SmallModel(dir_);
};

TEST_F(MeasureTest, ADocumentFillsTheContext) {
  const TextTokenizer& tokenizer = trained_->tokenizer();
  for (const int32_t length : {129, 130, 200, 333, 1'024}) {
    const auto tokens = NeedleOf(tokenizer, NeedleTask::kKey, Filler(), length, 0.5, 9);
    ASSERT_OK(tokens);
    EXPECT_EQ(tokens->prompt.size() + tokens->answer.size(), static_cast<size_t>(length));
    EXPECT_EQ(tokens->prompt[0], tokenizer.separator());
    EXPECT_EQ(tokens->answer.size(), 6u) << "a space and five digits";
    const std::string prompt = TextOf(tokenizer, tokens->prompt);
    const std::string answer = TextOf(tokenizer, tokens->answer);
    EXPECT_THAT(prompt, HasSubstr("\nThe pass key is" + answer + ". Remember it."));
  }
}

TEST_F(MeasureTest, TheShortestDocumentOfATaskIsTheShortestLength) {
  const auto why = [&](NeedleTask task, int32_t length) {
    return std::string(
        NeedleOf(trained_->tokenizer(), task, Filler(), length, 0.5, 9).status().message());
  };
  EXPECT_THAT(why(NeedleTask::kKey, 128),
              HasSubstr("length 128 (at least 129, the shortest document of the task key in"));
  EXPECT_EQ(why(NeedleTask::kKey, 129), "");
  for (const NeedleTask task :
       {NeedleTask::kKeys, NeedleTask::kValues, NeedleTask::kTrace, NeedleTask::kCount}) {
    EXPECT_THAT(why(task, 255),
                HasSubstr(absl::StrCat("(at least 256, the shortest document of the task ",
                                       NameOf(task), " in this model's tokens); choose")));
    EXPECT_EQ(why(task, 256), "");
  }
}

TEST_F(MeasureTest, EachTaskIsMeasured) {
  for (const NeedleTask task :
       {NeedleTask::kKeys, NeedleTask::kValues, NeedleTask::kTrace, NeedleTask::kCount}) {
    const auto cells = Measure({.task = task, .lengths = {300}, .depths = 1, .trials = 1});
    ASSERT_OK(cells);
    EXPECT_EQ(*cells, (std::vector<NeedleCell>{{300, 0.5, 0, 1}})) << NameOf(task);
  }
}

// An untrained model never guesses six tokens.
TEST_F(MeasureTest, AModelThatKnowsNothingFindsNothing) {
  const auto cells = Measure({.lengths = {130, 160}, .depths = 3, .trials = 2});
  ASSERT_OK(cells);
  const std::vector<NeedleCell> expected = {{130, 0, 0, 2}, {130, 0.5, 0, 2}, {130, 1, 0, 2},
                                            {160, 0, 0, 2}, {160, 0.5, 0, 2}, {160, 1, 0, 2}};
  EXPECT_EQ(*cells, expected);
}

TEST_F(MeasureTest, RefusesWhatIsOutOfRange) {
  EXPECT_THAT(WhyNot({.lengths = {31}}), ::testing::StartsWith("needle: length 31"));
  EXPECT_THAT(WhyNot({.lengths = {512}, .depths = 102}),
              ::testing::StartsWith("needle: depths 102"));
  EXPECT_THAT(WhyNot({.lengths = {512}, .trials = 0}), ::testing::StartsWith("needle: trials 0"));
  EXPECT_THAT(WhyNot({.lengths = std::vector<int32_t>(33, 512)}),
              HasSubstr("lengths 33 (from 0 to 32)"));
}

TEST(NeedleTable, HasARowForEachDepthAndAColumnForEachLength) {
  const std::vector<NeedleCell> cells = {{512, 0, 10, 10},     {512, 0.5, 9, 10},
                                         {512, 1, 0, 10},      {16384, 0, 5, 10},
                                         {16384, 0.5, 10, 10}, {16384, 1, 10, 10}};
  EXPECT_EQ(NeedleTable(cells),
            "depth      512    16384\n"
            "   0%     100%      50%\n"
            "  50%      90%     100%\n"
            " 100%       0%     100%\n");
  EXPECT_EQ(NeedleCsv({{512, 0.25, 9, 10}}, NeedleTask::kTrace),
            "length,depth,found,trials,task\n512,0.25,9,10,trace\n");
  EXPECT_EQ(NeedleDocument({{512, 0.25, 9, 10}}, NeedleTask::kKeys, 7).dump(),
            R"({"step":7,"task":"keys","cells":[)"
            R"({"context_tokens":512,"depth_ratio":0.25,"found":9,"trials":10}]})");
}

}  // namespace
}  // namespace nsa::train
