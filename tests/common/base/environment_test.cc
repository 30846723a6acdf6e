#include "common/base/environment.h"

#include <gmock/gmock.h>

namespace nsa {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(Environment, VariablesAreFoundByTheBeginningOfTheirNames) {
  setenv("NSA_ENVIRONMENT_TEST_B", "b=c", 1);
  setenv("NSA_ENVIRONMENT_TEST_A", "", 1);
  setenv("NOT_NSA_ENVIRONMENT_TEST", "x", 1);
  EXPECT_THAT(
      VariablesWith("NSA_ENVIRONMENT_TEST"),
      ElementsAre(Pair("NSA_ENVIRONMENT_TEST_A", ""), Pair("NSA_ENVIRONMENT_TEST_B", "b=c")));
}

TEST(Environment, AVariableIsReplacedWhenItHasAnotherValueOrNone) {
  EXPECT_THAT(ReplacedVariables({{"A", "1"}, {"B", "2"}, {"C", "3"}},
                                {{"A", "1"}, {"B", ""}, {"NEW", "4"}}),
              ElementsAre(ReplacedVariable{.name = "B", .given = "2", .used = ""},
                          ReplacedVariable{.name = "C", .given = "3"}));
}

}  // namespace
}  // namespace nsa
