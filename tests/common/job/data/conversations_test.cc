#include "common/job/data/conversations.h"

#include "gmock/gmock.h"

namespace nsa {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(AnswerEnds, AreThoseOfTheFormatWhereAnswersAreLearned) {
  v1::DataSpec data;
  data.set_tokenizer(v1::TOKENIZER_BYTE);
  EXPECT_THAT(AnswerEnds(data), IsEmpty());
  data.set_loss_on(v1::LOSS_ON_ASSISTANT);
  EXPECT_THAT(AnswerEnds(data), ElementsAre("<|im_end|>", "<|endoftext|>"));
}

}  // namespace
}  // namespace nsa
