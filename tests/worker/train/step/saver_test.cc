#include "worker/train/step/saver.h"

#include <gtest/gtest.h>

#include <optional>

namespace nsa::train {
namespace {

constexpr LastSavePatience kPatience = {
    .first_wait = absl::Seconds(5), .longest_wait = absl::Minutes(1), .total = absl::Minutes(5)};

TEST(WaitAfter, DoublesUpToTheLongestWaitAndEndsBeforeTheTotalIsPassed) {
  struct Case {
    int failures;
    std::optional<absl::Duration> wait;
  };
  const Case cases[] =
      {
          {1, absl::Seconds(5)},  {2, absl::Seconds(10)}, {3, absl::Seconds(20)},
          {4, absl::Seconds(40)}, {5, absl::Minutes(1)},  {6, absl::Minutes(1)},
          {7, absl::Minutes(1)},  // 255 s of 300 s are used
          {8, std::nullopt},
      };
  for (const Case& c : cases) EXPECT_EQ(WaitAfter(c.failures, kPatience), c.wait) << c.failures;
}

TEST(WaitAfter, IsNothingWithoutPatience) {
  EXPECT_EQ(WaitAfter(1, {.total = absl::ZeroDuration()}), std::nullopt);
}

}  // namespace
}  // namespace nsa::train
