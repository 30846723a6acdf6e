#include "kernels/nn/embedding.h"

#include <gmock/gmock.h>

#include "tests/kernels/nn/values.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kVocab = 5, kDim = 37;
const std::vector<int32_t> kTokens = {4, 0, 4, 2, 4, 0};
constexpr int64_t kTableRows = 6;

TEST(Embedding, CopiesTheTokensRows) {
  const std::vector<float> table = RandomValues(kVocab * kDim, 1);
  std::vector<float> y(kTableRows * kDim);
  ASSERT_TRUE(Embedding({}, {kTableRows, kVocab, kDim, std::span<const int32_t>(kTokens),
                             View(table), std::span<float>(y)})
                  .ok());
  for (int64_t r = 0; r < kTableRows; ++r) {
    for (int64_t i = 0; i < kDim; ++i) {
      ASSERT_EQ(y[r * kDim + i], table[kTokens[r] * kDim + i]);
    }
  }
}

TEST(Embedding, GradientAddsTheRowsOfATokenInOrder) {
  const std::vector<float> dy = RandomValues(kTableRows * kDim, 2),
                           start = RandomValues(kVocab * kDim, 3);
  std::vector<float> want = start;
  for (int64_t r = 0; r < kTableRows; ++r) {
    for (int64_t i = 0; i < kDim; ++i) want[kTokens[r] * kDim + i] += dy[r * kDim + i];
  }
  ExpectSameBitsForAnyThreads([&] {
    std::vector<float> dtable = start;
    EXPECT_TRUE(EmbeddingBackward({}, {kTableRows, kVocab, kDim, std::span<const int32_t>(kTokens),
                                       View(dy), std::span<float>(dtable)})
                    .ok());
    EXPECT_EQ(dtable, want);
    return dtable;
  });
}

TEST(Embedding, RefusesATokenOutsideTheVocabulary) {
  const std::vector<float> table(kVocab * kDim);
  std::vector<float> y(kDim);
  for (const int32_t token : {-1, 5}) {
    const std::vector<int32_t> tokens = {token};
    const absl::Status status = Embedding(
        {}, {1, kVocab, kDim, std::span<const int32_t>(tokens), View(table), std::span<float>(y)});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("(from 0 to 4)"));
  }
}

}  // namespace
}  // namespace nsa
