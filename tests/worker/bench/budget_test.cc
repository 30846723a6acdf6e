#include "worker/bench/budget.h"

#include <algorithm>

#include "common/nsa/visibility.h"
#include "gmock/gmock.h"

namespace nsa::bench {
namespace {

using ::testing::DoubleNear;

constexpr KernelCode kBoth[] = {KernelCode::kSm80, KernelCode::kSm90a};

NsaShape Shape(int32_t batch, int32_t seq_len) {
  return {batch, seq_len, 12, 2, 64, 64, 32, 16, 64, 16, 512};
}

// One group of one head, and tiles that nothing is wasted of but what lies above the diagonal.
const NsaShape kSmall{1, 256, 1, 1, 64, 64, 32, 16, 64, 16, 256};
// Two tiles of 128 queries see 2 and 4 tiles of 64 keys.
constexpr int kTilesOfQueries = 2 + 4;
// Each of four tiles of 64 keys is seen by the queries from its first on, in tiles of 64 queries.
constexpr int kTilesOfKeys = 4 + 3 + 2 + 1;
constexpr double kTile = 64 * 64 * 2;  // bytes of 64 rows of 64 bf16

TEST(Budget, CountsWholeTiles) {
  const double elements = kTilesOfQueries * 128.0 * 64, of_keys = kTilesOfKeys * 64.0 * 64;
  for (const KernelCode code : kBoth) {
    const Executed forward = ExecutedForward(kSmall, kWin, code);
    EXPECT_EQ(forward.exponentials, elements);
    EXPECT_EQ(forward.flops, 2 * elements * 128);
    EXPECT_EQ(forward.partial_bytes, 0);
    const Executed backward = ExecutedBackward(kSmall, kWin, code);
    EXPECT_EQ(backward.exponentials, elements + of_keys);
    EXPECT_EQ(backward.flops, 2 * elements * 192 + 2 * of_keys * 256);
  }
}

// What each of two warp groups reads for each product, in tiles, and what the thread block writes.
TEST(Budget, WarpGroupsReadBothOperandsOfAProductFromSharedMemory) {
  double forward = 0, backward = 0;
  for (int i = 0; i < kTilesOfQueries; ++i) {
    for (int group = 0; group < 2; ++group) {
      forward += 2;       // S = Q Kᵀ
      forward += 1;       // o += P V: P is in registers
      backward += 2 + 2;  // S = Q Kᵀ, dP = dO Vᵀ
      backward += 1;      // dq += dS K
    }
    forward += 2, backward += 2;  // keys and values are copied
  }
  forward += 4;       // the queries
  backward += 4 + 4;  // and dO
  for (int i = 0; i < kTilesOfKeys; ++i) {
    backward += 2 + 2;  // Sᵀ = K Qᵀ, dPᵀ = V dOᵀ
    backward += 1 + 1;  // dv += Pᵀ dO, dk += dSᵀ Q
    backward += 2;      // the rows of q and dO are copied
  }
  // Keys and values: the rows of the first two tiles of keys are in two segments of 128 tokens.
  backward += (2 + 2 + 1 + 1) * 2;
  EXPECT_EQ(ExecutedForward(kSmall, kWin, KernelCode::kSm90a).shared_bytes, forward * kTile);
  EXPECT_EQ(ExecutedBackward(kSmall, kWin, KernelCode::kSm90a).shared_bytes, backward * kTile);
}

// A warp has 16 rows: a quarter of a tile, or an eighth of the 128 rows.
TEST(Budget, EachWarpLoadsTheWholeOtherTile) {
  double forward = 0;
  for (int i = 0; i < kTilesOfQueries; ++i) {
    for (int warp = 0; warp < 8; ++warp) forward += 0.25 + 1 + 1;  // of Q, K, V
    forward += 2;
  }
  EXPECT_EQ(ExecutedForward(kSmall, kWin, KernelCode::kSm80).shared_bytes, (forward + 4) * kTile);
}

TEST(Budget, IssuesTheProductsAndWhatEachLogitTakes) {
  // Of 16 rows and 64 keys, 32 logits for each lane: scale, exponential, maximum, sum; conversions
  // of two.
  constexpr double kLogits = 4 * 32 + 16;
  // By a warp group: four steps of 16 columns, then of 16 keys. Boxes bring the tiles.
  EXPECT_EQ(ExecutedForward(kSmall, kWin, KernelCode::kSm90a).instructions,
            kTilesOfQueries * 8 * (kLogits + 4 + 4));
  // By a warp: four steps of eight mma.sync, for both products; the loads of A and of B; and copies
  // of 512 bytes.
  EXPECT_EQ(
      ExecutedForward(kSmall, kWin, KernelCode::kSm80).instructions,
      kTilesOfQueries * (8 * (kLogits + 2 * 32 + 4 + 2 * 16) + 2 * kTile / 512) + 4 * kTile / 512);
}

TEST(Budget, NoBranchExecutesLessThanItNeeds) {
  for (const auto& [batch, seq_len] : {std::pair{32, 2048}, {16, 4096}, {8, 8192}, {1, 65'536}}) {
    const NsaShape s = Shape(batch, seq_len);
    for (const Branch branch : {kCmp, kSel, kWin}) {
      const double pairs = static_cast<double>(KeysRead(s, branch)) * s.heads_per_group();
      for (const KernelCode code : kBoth) {
        EXPECT_GE(ExecutedForward(s, branch, code).flops, 2 * pairs * 128)
            << seq_len << " " << branch;
        EXPECT_GE(ExecutedBackward(s, branch, code).flops, 2 * pairs * 320)
            << seq_len << " " << branch;
      }
    }
  }
}

// Counted by hand from tiles of 21 tokens, all of whose visible blocks are in the union.
TEST(Budget, OfTheDefaultModelAtTwoThousandTokens) {
  const NsaShape s = Shape(32, 2048);
  EXPECT_THAT(ExecutedForward(s, kSel, KernelCode::kSm90a).flops, DoubleNear(0.219e12, 0.003e12));
  EXPECT_THAT(ExecutedForward(s, kWin, KernelCode::kSm90a).flops, DoubleNear(0.103e12, 0.002e12));
}

// By key block a tile has ten tokens of 16 choices each, so most rows are used; every choice has a
// partial row.
TEST(Budget, ByKeyBlockTheWorkIsThatOfTheChoices) {
  const NsaShape s = Shape(1, 65'536);
  const double pairs = static_cast<double>(KeysRead(s, kSel)) * s.heads_per_group();
  const Executed forward = ExecutedForward(s, kSel, KernelCode::kSm90a);
  EXPECT_LT(forward.flops, 1.2 * 2 * pairs * 128);
  // The first 1,024 tokens have fewer.
  EXPECT_THAT(forward.partial_bytes, DoubleNear(2.0 * 65'000 * 12 * 16 * (2 * 64 + 8), 0.01e9));
}

// 32 blocks of 64 keys, of which each token chooses three at most, by groups of one head: a tile
// has 64 choices.
TEST(Budget, OnePassReadsTheGradientsOfTheLogitsFromSharedMemory) {
  const NsaShape s{1, 2048, 1, 1, 64, 64, 32, 16, 64, 3, 512};
  double choices = 0;
  for (int t = 0; t < 2048; ++t) choices += std::min(3, t / 64 + 1);
  const double tiles = choices / 64 + 32 / 2.0;   // a list's last is half full
  const double products = (2 + 2) + (1 + 1) + 2;  // Sᵀ, dPᵀ; dv, dk; dq from dS and K
  const double written = 2 + 1;                   // the rows of q and dO, and dS
  EXPECT_EQ(ExecutedBackward(s, kSel, KernelCode::kSm90a).shared_bytes,
            (tiles * (products + written) + 32 * 2) * kTile);
  EXPECT_EQ(ExecutedBackward(s, kSel, KernelCode::kSm90a).flops, tiles * 2 * 64 * 64 * 5 * 64);
}

// Of 4,096 tokens and 16 chosen blocks the last 3,072 compete, in tiles of 16. A tile scores the
// compressed keys of the blocks before its last two, in rounds of 128.
TEST(Budget, SelectionScoresWhereABlockCompetes) {
  double rounds = 0, blocks = 0;
  for (int t = 1024; t < 4096; t += 16) {
    rounds += (t / 64 - 1) * 4 > 128 ? 2 : 1;
    ++blocks;
  }
  rounds *= 2, blocks *= 2;  // groups
  const Executed executed = ExecutedSelection(Shape(1, 4096));
  EXPECT_EQ(executed.exponentials, rounds * 16 * 128 * 6);
  EXPECT_EQ(executed.flops, rounds * 2 * 16 * 128 * 6 * 64);
  // Four warps read the queries of six heads and 32 keys each; keys are copied, sums written, read.
  const double round = 4 * (6 * 16 + 32) * 128 + 128 * 128 + 2 * 16 * 128 * 4;
  EXPECT_EQ(executed.shared_bytes, rounds * round + blocks * 6 * 16 * 128);
  EXPECT_EQ(ExecutedSelection(Shape(32, 1024)).flops, 0);  // every token chooses all blocks
}

}  // namespace
}  // namespace nsa::bench
