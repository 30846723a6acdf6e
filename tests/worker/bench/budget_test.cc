#include "worker/bench/budget.h"

#include "common/nsa/visibility.h"
#include "gmock/gmock.h"

namespace nsa::bench {
namespace {

using ::testing::DoubleNear;

NsaShape Shape(int32_t batch, int32_t seq_len) {
  return {batch, seq_len, 12, 2, 64, 64, 32, 16, 64, 16, 512};
}

// One group of one head, and tiles that nothing is wasted of but what lies above the diagonal.
TEST(Budget, CountsWholeTiles) {
  const NsaShape s{1, 256, 1, 1, 64, 64, 32, 16, 64, 16, 256};
  // Two tiles of 128 queries see 2 and 4 tiles of 64 keys.
  const double elements = (2 + 4) * 128.0 * 64;
  const Executed forward = ExecutedForward(s, kWin);
  EXPECT_EQ(forward.exponentials, elements);
  EXPECT_EQ(forward.flops, 2 * elements * 128);
  EXPECT_EQ(forward.partial_bytes, 0);
  // Each of four tiles of keys is seen by the queries from its first on, in tiles of 64 queries.
  const double of_keys = (4 + 3 + 2 + 1) * 64.0 * 64;
  const Executed backward = ExecutedBackward(s, kWin);
  EXPECT_EQ(backward.exponentials, elements + of_keys);
  EXPECT_EQ(backward.flops, 2 * elements * 192 + 2 * of_keys * 256);
}

TEST(Budget, NoBranchExecutesLessThanItNeeds) {
  for (const auto& [batch, seq_len] : {std::pair{32, 2048}, {16, 4096}, {8, 8192}, {1, 65'536}}) {
    const NsaShape s = Shape(batch, seq_len);
    for (const Branch branch : {kCmp, kSel, kWin}) {
      const double pairs = static_cast<double>(KeysRead(s, branch)) * s.heads_per_group();
      EXPECT_GE(ExecutedForward(s, branch).flops, 2 * pairs * 128) << seq_len << " " << branch;
      EXPECT_GE(ExecutedBackward(s, branch).flops, 2 * pairs * 320) << seq_len << " " << branch;
    }
  }
}

// Counted by hand from tiles of 21 tokens, all of whose visible blocks are in the union.
TEST(Budget, OfTheDefaultModelAtTwoThousandTokens) {
  EXPECT_THAT(ExecutedForward(Shape(32, 2048), kSel).flops, DoubleNear(0.219e12, 0.003e12));
  EXPECT_THAT(ExecutedForward(Shape(32, 2048), kWin).flops, DoubleNear(0.103e12, 0.002e12));
}

// By key block a tile has ten tokens of 16 choices each, so most rows are used; every choice has a
// partial row.
TEST(Budget, ByKeyBlockTheWorkIsThatOfTheChoices) {
  const NsaShape s = Shape(1, 65'536);
  const double pairs = static_cast<double>(KeysRead(s, kSel)) * s.heads_per_group();
  const Executed forward = ExecutedForward(s, kSel);
  EXPECT_LT(forward.flops, 1.2 * 2 * pairs * 128);
  // The first 1,024 tokens have fewer.
  EXPECT_THAT(forward.partial_bytes, DoubleNear(2.0 * 65'000 * 12 * 16 * (2 * 64 + 8), 0.01e9));
}

}  // namespace
}  // namespace nsa::bench
