#include "kernels/nsa/layer/head_parts.h"

#include <gmock/gmock.h>

#include <numeric>
#include <vector>

#include "tests/kernels/layer.h"
#include "tests/testing/status_matchers.h"

namespace nsa::testing {
namespace {

using ::testing::HasSubstr;

// Two rows of q with four heads of two columns and a key with two groups of one column, for two
// ranks: heads 0 and 1 with group 0, heads 2 and 3 with group 1.
TEST(HeadParts, AreTheHeadsOfOneRankSideBySide) {
  const std::vector<int64_t> widths = {8, 2};
  std::vector<float> whole(20), split(20, -1.0f);
  std::iota(whole.begin(), whole.end(), 0.0f);
  ASSERT_OK(SplitHeads(
      {}, {.parts = 2, .rows = 2, .widths = widths, .whole = Span(whole), .split = Span(split)}));
  EXPECT_EQ(split, (std::vector<float>{0, 1, 2, 3, 8, 10, 11, 12, 13, 18,     // rank 0
                                       4, 5, 6, 7, 9, 14, 15, 16, 17, 19}));  // rank 1
}

TEST(HeadParts, JoinedTheyAreTheWholeAgain) {
  for (const int parts : {1, 2, 4}) {
    const std::vector<int64_t> widths = {24, 8, 4, 8, 4, 8, 4};
    const int64_t rows = 37;
    const std::vector<float> whole = Random(rows * 60, 3);
    std::vector<float> split = Poisoned(rows * 60), back = split;
    ASSERT_OK(SplitHeads({}, {.parts = parts,
                              .rows = rows,
                              .widths = widths,
                              .whole = Span(whole),
                              .split = Span(split)}));
    EXPECT_EQ(split == whole, parts == 1);
    ASSERT_OK(JoinHeads({}, {.parts = parts,
                             .rows = rows,
                             .widths = widths,
                             .split = Span(split),
                             .whole = Span(back)}));
    EXPECT_EQ(back, whole);
  }
}

TEST(HeadParts, RefusesColumnsThatItCannotDivide) {
  std::vector<float> values(12), others(12);
  const auto split = [&](std::vector<int64_t> widths, int32_t parts, int64_t rows) {
    return std::string(SplitHeads({}, {.parts = parts,
                                       .rows = rows,
                                       .widths = widths,
                                       .whole = Span(values),
                                       .split = Span(others)})
                           .message());
  };
  EXPECT_EQ(split({6}, 2, 2), "");
  EXPECT_THAT(split({3, 3}, 2, 2), HasSubstr("widths: 3 columns"));
  EXPECT_THAT(split({}, 2, 2), HasSubstr("widths: 0 segments"));
  EXPECT_THAT(split({2, 2, 2, 2, 2, 2, 2, 2}, 2, 1), HasSubstr("widths: 8 segments"));
  EXPECT_THAT(split({6}, 2, 3), HasSubstr("whole: 12 elements"));
  EXPECT_THAT(split({6}, 0, 2), HasSubstr("parts: 0"));
}

}  // namespace
}  // namespace nsa::testing
