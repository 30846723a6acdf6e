#include "worker/train/data/stream/windows.h"

#include <numeric>
#include <set>
#include <vector>

#include "gmock/gmock.h"

namespace nsa::train {
namespace {

// Tokens 0, 1, 2, … of one document.
class Counting {
 public:
  Counting(int32_t seq_len, int64_t size)
      : seq_len_(seq_len), windows_({.seq_len = seq_len, .size = size, .vocab = 1 << 20}) {}

  Windows& windows() { return windows_; }

  void Append(int64_t tokens) {
    std::vector<Token> next(static_cast<size_t>(tokens));
    std::iota(next.begin(), next.end(), static_cast<Token>(token_));
    windows_.Append(next, {.document = 3, .token = token_});
    token_ += tokens;
  }

  // Its place among the rows as they are in the text.
  int64_t Read(int64_t row) {
    windows_.PassTo(row);
    std::vector<Token> tokens(static_cast<size_t>(seq_len_) + 1);
    windows_.Read(row, tokens);
    for (size_t i = 1; i < tokens.size(); ++i) EXPECT_EQ(tokens[i], tokens[i - 1] + 1);
    EXPECT_EQ(tokens[0] % seq_len_, 0);
    return tokens[0] / seq_len_;
  }

 private:
  const int32_t seq_len_;
  Windows windows_;
  int64_t token_ = 0;
};

TEST(Windows, GivesEachRowOfAWindowOnceInAnotherOrder) {
  Counting text(4, 10);
  text.Append(4 * 30 + 1);
  ASSERT_EQ(text.windows().complete(), 30);
  std::set<std::vector<int64_t>> orders;
  for (int64_t begin = 0; begin < 30; begin += 10) {
    std::vector<int64_t> order;
    for (int64_t row = begin; row < begin + 10; ++row) order.push_back(text.Read(row) - begin);
    EXPECT_THAT(order, testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 3u) << "windows differ";
}

TEST(Windows, SaysWhereAWindowBegins) {
  Counting text(4, 10);
  text.Append(17);  // four rows; the last token is the first of the next
  EXPECT_EQ(text.windows().appended(), 4);
  EXPECT_EQ(text.windows().complete(), 0);
  text.windows().EndEpoch();
  EXPECT_EQ(text.windows().complete(), 4) << "the end of an epoch ends a window";
  EXPECT_EQ(text.windows().first_row(), 0);
  text.windows().PassTo(4);
  EXPECT_EQ(text.windows().first_row(), 4);
  EXPECT_EQ(text.windows().place(), (StreamPlace{.document = 3, .token = 16}));
  text.windows().EndEpoch();
  EXPECT_EQ(text.windows().complete(), 4) << "a window has at least a row";
  text.Append(3);
  EXPECT_EQ(text.windows().appended(), 4);
  text.Append(1);
  EXPECT_EQ(text.windows().appended(), 5);
}

TEST(Windows, TheFirstOnesOfARunAreSmall) {
  constexpr int32_t kSeqLen = 1 << 17;  // half a million tokens are four rows
  Counting text(kSeqLen, 20);
  std::vector<int64_t> ends;
  for (int64_t rows = 0; rows < 60; ++rows) {
    text.Append(kSeqLen + (rows == 0 ? 1 : 0));
    const int64_t end = text.windows().complete();
    if (end > 0 && (ends.empty() || ends.back() != end)) {
      ends.push_back(end);
      text.windows().PassTo(end);  // so that they are not all held
    }
  }
  EXPECT_THAT(ends, testing::ElementsAre(4, 12, 28, 48)) << "of 4, 8, 16, 20, … rows";
}

// Reading in step: when a window ends the next one is complete, and little more than one is held.
TEST(Windows, TheNextOneIsFilledAsOneIsUsedUp) {
  Counting text(4, 10);
  text.Append(1);
  while (text.windows().complete() == 0) text.Append(4);
  int64_t most = 0;
  for (int64_t row = 0; row < 200; ++row) {
    ASSERT_GT(text.windows().complete(), row) << "a window that is not complete at its turn";
    text.Read(row);
    while (text.windows().WantsMore(row)) text.Append(4);
    most = std::max(most, text.windows().appended() - row);
  }
  EXPECT_LE(most, 12);
}

}  // namespace
}  // namespace nsa::train
