#include "common/estimate/optimizer_traits.h"

#include <gtest/gtest.h>

#include "common/job/enum_words.h"

namespace nsa {
namespace {

TEST(OptimizerTraits, EveryOptimizerOfTheSchemaHasARowWithItsWord) {
  const google::protobuf::EnumDescriptor& type = *v1::Optimizer_descriptor();
  for (int i = 0; i < type.value_count(); ++i) {
    v1::TrainSpec train;
    train.set_optimizer(static_cast<v1::Optimizer>(type.value(i)->number()));
    if (train.optimizer() == v1::OPTIMIZER_UNSPECIFIED) {
      EXPECT_EQ(TraitsOf(train).optimizer, v1::OPTIMIZER_ADAMW);
      continue;
    }
    EXPECT_EQ(TraitsOf(train).optimizer, train.optimizer());
    EXPECT_EQ(TraitsOf(train).word, EnumWord(*type.value(i)));
  }
}

}  // namespace
}  // namespace nsa
