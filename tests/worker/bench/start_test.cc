#include "worker/bench/start.h"

#include <fstream>

#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/worker/train/score/small_trained.h"

namespace nsa::bench {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAreArray;
using ::testing::EndsWith;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Lt;

// A folder with a checkpoint, and the job that it belongs to.
class StartTest : public ::testing::Test {
 protected:
  StartTest() {
    train::SaveSmallModel(dir_, [](v1::JobSpec*) {});
    trained_ = *train::TrainedModel::Load(dir_.path());
    spec_ = trained_->spec();
  }
  std::string Text(const std::string& content) const {
    std::ofstream(dir_ / "text.txt") << content;
    return dir_ / "text.txt";
  }

  const TempDir dir_;
  std::unique_ptr<train::TrainedModel> trained_;
  v1::JobSpec spec_;
};

TEST_F(StartTest, RandomOnesAreThoseThatTrainingBeginsWith) {
  const train::ParameterLayout layout(spec_);
  const Start start = RandomStart(spec_, &layout);
  train::Arena expected(&layout);
  train::Initialize(spec_.train().seed(), &expected);
  EXPECT_THAT(start.weights.flat(), ElementsAreArray(expected.flat()));
  EXPECT_EQ(start.tokens.size(), 2u * 32 + 1);
  EXPECT_THAT(start.tokens, Each(AllOf(Ge(0), Lt(256))));
  EXPECT_EQ(start.origin, "random weights and tokens");
}

TEST_F(StartTest, ATrainedOneHasTheCheckpointsWeightsAndTheTextsTokens) {
  const std::string text = "ab" + std::string(40, 'c');
  spec_.mutable_train()->set_batch_size(7);  // the same parameters
  const train::ParameterLayout layout(spec_);
  const auto start = TrainedStart(spec_, &layout, dir_.path(), Text(text));
  ASSERT_OK(start);
  EXPECT_THAT(start->weights.flat(), ElementsAreArray(trained_->text_model().parameters->flat()));
  EXPECT_THAT(start->tokens, ElementsAreArray(train::Bytes(text)));
  EXPECT_THAT(start->origin, AllOf(HasSubstr("after step 5"), EndsWith("text.txt")));
}

TEST_F(StartTest, AJobWithOtherParametersIsRefused) {
  spec_.mutable_model()->set_n_layers(3);
  const train::ParameterLayout layout(spec_);
  EXPECT_THAT(TrainedStart(spec_, &layout, dir_.path(), Text(std::string(40, 'c'))),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("checkpoint: "), HasSubstr("the job's model: "),
                             HasSubstr("give the job that it was trained with"))));
}

TEST_F(StartTest, ATextShorterThanASequenceIsRefused) {
  const train::ParameterLayout layout(spec_);
  EXPECT_THAT(TrainedStart(spec_, &layout, dir_.path(), Text(std::string(32, 'c'))),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has 32 tokens (more than")));
  EXPECT_THAT(TrainedStart(spec_, &layout, dir_.path(), dir_ / "absent"),
              StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace nsa::bench
