#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/train/data/held_tokens.h"
#include "worker/train/data/batches.h"
#include "worker/train/data/corpus.h"
#include "worker/train/data/order.h"
#include "worker/train/data/synthetic.h"

namespace nsa::train {
namespace {

// Row i is 1 + i, 2 + i, …, so that the tokens of a batch show which rows it holds.
class CountingRows final : public RowSource {
 public:
  explicit CountingRows(int64_t rows) : rows_(rows) {}
  int64_t rows() const override { return rows_; }
  int32_t separator() const override { return 0; }
  v1::DataSource source() const override { return v1::DATA_SOURCE_TOKENS; }
  absl::Status Read(int64_t row, std::span<int32_t> tokens) override {
    for (size_t t = 0; t < tokens.size(); ++t) tokens[t] = static_cast<int32_t>(1 + row + t);
    return absl::OkStatus();
  }

 private:
  const int64_t rows_;
};

TEST(RowOrder, ShowsEveryRowExactlyOnceInEveryEpoch) {
  for (const int64_t rows : {1, 2, 3, 4, 5, 16, 17, 1000, 4096, 4097, 65537}) {
    const RowOrder order(42, rows);
    for (const int64_t epoch : {0, 1, 7}) {
      std::vector<bool> seen(rows);
      for (int64_t q = 0; q < rows; ++q) {
        const int64_t row = order.Row(epoch, q);
        ASSERT_GE(row, 0);
        ASSERT_LT(row, rows);
        ASSERT_FALSE(seen[row]) << "row " << row << " twice, of " << rows;
        seen[row] = true;
      }
    }
  }
}

TEST(RowOrder, DependsOnSeedAndEpochAndOnNothingElse) {
  const RowOrder order(1, 5000), same(1, 5000), other(2, 5000);
  int equal_seed = 0, equal_epoch = 0;
  for (int64_t q = 0; q < 5000; ++q) {
    EXPECT_EQ(order.Row(3, q), same.Row(3, q));
    equal_seed += order.Row(3, q) == other.Row(3, q);
    equal_epoch += order.Row(3, q) == order.Row(4, q);
  }
  // Two random permutations agree at one position on average.
  EXPECT_LT(equal_seed, 12);
  EXPECT_LT(equal_epoch, 12);
}

TEST(RowOrder, LeavesNoTraceOfTheOriginalOrder) {
  const int64_t rows = 10000;
  const RowOrder order(5, rows);
  // Correlation of position and row; its standard deviation is 1/√rows = 0.01.
  double sum = 0;
  for (int64_t q = 0; q < rows; ++q) {
    sum += (double(q) - rows / 2.0) * (double(order.Row(0, q)) - rows / 2.0);
  }
  EXPECT_LT(std::abs(sum / (rows * (double(rows) * rows / 12))), 0.05);
}

TEST(ShiftOfEpoch, IsZeroInTheFirstEpochAndAnotherOneInMostOthers) {
  std::set<int64_t> shifts;
  for (int64_t epoch = 0; epoch < 50; ++epoch) {
    const int64_t shift = ShiftOfEpoch(7, epoch, 2048);
    EXPECT_EQ(shift, ShiftOfEpoch(7, epoch, 2048));
    EXPECT_GE(shift, 0);
    EXPECT_LT(shift, 2048);
    shifts.insert(shift);
  }
  EXPECT_EQ(ShiftOfEpoch(7, 0, 2048), 0);
  EXPECT_GT(shifts.size(), 45u);
  EXPECT_NE(ShiftOfEpoch(7, 1, 2048), ShiftOfEpoch(8, 1, 2048));
}

// The tokens are 0, 1, 2, …, so that a token says where it is from.
TEST(CorpusRows, EveryEpochPredictsEachTokenAtMostOnceAndCutsTheTextElsewhere) {
  constexpr int32_t kLength = 4;
  for (const int32_t tokens : {5, 13, 21, 24, 25}) {
    HeldShards held(/*vocab=*/1000);
    auto store = std::make_shared<TokenStore>();
    for (Token token = 0; token < tokens; ++token) Append({&token, 1}, &held, store.get());
    CorpusRows rows(store, kLength, 0, v1::DATA_SOURCE_TOKENS);
    for (int64_t shift = 0; shift < kLength; ++shift) {
      std::set<int32_t> predicted;
      for (int64_t i = 0; i < rows.rows(); ++i) {
        std::vector<int32_t> row(kLength + 1);
        ASSERT_OK(rows.ReadShifted(i, shift, row));
        EXPECT_EQ(row[0], (shift + i * kLength) % tokens);
        for (size_t t = 1; t < row.size(); ++t) {
          EXPECT_EQ(row[t], (row[t - 1] + 1) % tokens);
          EXPECT_TRUE(predicted.insert(row[t]).second) << row[t] << " twice, shift " << shift;
        }
        std::vector<int32_t> unshifted(kLength + 1);
        ASSERT_OK(rows.Read(i, unshifted));
        EXPECT_EQ(unshifted == row, shift == 0);
      }
      EXPECT_EQ(predicted.size(), static_cast<size_t>(kLength * rows.rows()));
    }
  }
}

BatchShape Shape(int rank, int world) {
  BatchShape shape;
  shape.seq_len = 4;
  shape.batch_size = 12;
  shape.rank = rank;
  shape.world_size = world;
  shape.vocab = 1 << 20;
  shape.seed = 9;
  return shape;
}

TEST(BatchMaker, GivesTheSameRowsWhateverTheNumberOfRanks) {
  auto rows = std::make_shared<CountingRows>(100);
  for (int64_t sequence : {0, 12, 96}) {  // the last batch contains the end of the epoch
    const auto whole = BatchMaker(Shape(0, 1), rows).Make({2, sequence});
    ASSERT_OK(whole);
    for (int world : {2, 3, 4, 12}) {
      std::vector<int32_t> joined;
      for (int rank = 0; rank < world; ++rank) {
        const auto part = BatchMaker(Shape(rank, world), rows).Make({2, sequence});
        ASSERT_OK(part);
        EXPECT_EQ(part->rows, 12 / world);
        joined.insert(joined.end(), part->tokens.begin(), part->tokens.end());
      }
      EXPECT_EQ(joined, whole->tokens) << world << " ranks";
    }
  }
}

TEST(BatchMaker, TargetsAreTheTokensThatFollow) {
  const auto batch = BatchMaker(Shape(0, 1), std::make_shared<CountingRows>(50)).Make({0, 0});
  ASSERT_OK(batch);
  for (size_t i = 0; i < batch->tokens.size(); ++i) {
    EXPECT_EQ(batch->targets[i], batch->tokens[i] + 1);
  }
}

TEST(BatchMaker, RefusesATokenOutsideTheVocabulary) {
  BatchShape shape = Shape(0, 1);
  shape.vocab = 20;
  EXPECT_THAT(
      BatchMaker(shape, std::make_shared<CountingRows>(50)).Make({0, 0}),
      StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("model.vocab is 20")));
}

TEST(BatchMaker, DocumentStartsAreTheSeparatorsPositions) {
  class OneRow final : public RowSource {
   public:
    int64_t rows() const override { return 1; }
    int32_t separator() const override { return 0; }
    v1::DataSource source() const override { return v1::DATA_SOURCE_TEXT; }
    absl::Status Read(int64_t, std::span<int32_t> tokens) override {
      const std::vector<int32_t> row = {5, 6, 0, 7, 8, 0, 0, 9, 4};
      std::copy(row.begin(), row.end(), tokens.begin());
      return absl::OkStatus();
    }
  };
  BatchShape shape = Shape(0, 1);
  shape.seq_len = 8;
  shape.batch_size = 1;
  shape.document_mask = true;
  const auto batch = BatchMaker(shape, std::make_shared<OneRow>()).Make({0, 0});
  ASSERT_OK(batch);
  EXPECT_THAT(batch->doc_start, testing::ElementsAre(0, 0, 2, 2, 2, 5, 6, 6));
}

TEST(Advance, CarriesIntoTheNextEpoch) {
  EXPECT_EQ(Advance({0, 8}, 2, 10), (DataPosition{1, 0}));
  EXPECT_EQ(Advance({0, 8}, 25, 10), (DataPosition{3, 3}));
}

TEST(SyntheticRows, ARowIsAPureFunctionOfSeedAndIndex) {
  SyntheticRows a(3, 256, 1000, 0), b(3, 256, 1000, 0), other_seed(4, 256, 1000, 0);
  std::vector<int32_t> x(129), y(129), z(129), next(129);
  ASSERT_OK(a.Read(17, next));
  ASSERT_OK(a.Read(5, x));
  ASSERT_OK(b.Read(5, y));
  ASSERT_OK(other_seed.Read(5, z));
  EXPECT_EQ(x, y);
  EXPECT_NE(x, z);
  EXPECT_NE(x, next);
}

TEST(SyntheticRows, ValidationRowsAreOtherRowsOfTheSameTask) {
  SyntheticRows train(3, 256, 1000, 0), val(3, 256, 1000, 1000);
  // Both use the same tables, so the frequent (last, next) pairs are mostly the same.
  const auto pairs = [](SyntheticRows& rows) {
    std::map<std::pair<int32_t, int32_t>, int> counts;
    std::vector<int32_t> row(1025);
    for (int i = 0; i < 100; ++i) {
      EXPECT_OK(rows.Read(i, row));
      for (size_t t = 1; t < row.size(); ++t) ++counts[{row[t - 1], row[t]}];
    }
    std::set<std::pair<int32_t, int32_t>> often;
    for (const auto& [pair, count] : counts) {
      if (count > 200) often.insert(pair);
    }
    return often;
  };
  const auto a = pairs(train), b = pairs(val);
  std::vector<std::pair<int32_t, int32_t>> common;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(common));
  EXPECT_GT(a.size(), 20u);
  EXPECT_GT(common.size(), a.size() * 7 / 10);
  std::vector<int32_t> x(1025), y(1025);
  ASSERT_OK(train.Read(0, x));
  ASSERT_OK(val.Read(0, y));
  EXPECT_NE(x, y);
}

TEST(SyntheticRows, HasStructureThatAnOrderTwoModelSees) {
  // Conditional entropy, estimated from counts: given two tokens it is far below ln 64 = 4.16, and
  // lower than given one token.
  SyntheticRows rows(3, 256, 1 << 20, 0);
  std::map<int32_t, std::map<int32_t, double>> one;
  std::map<std::pair<int32_t, int32_t>, std::map<int32_t, double>> two;
  std::vector<int32_t> row(2049);
  for (int i = 0; i < 400; ++i) {
    ASSERT_OK(rows.Read(i, row));
    for (size_t t = 2; t < row.size(); ++t) {
      ASSERT_LT(row[t], 64);
      ++one[row[t - 1]][row[t]];
      ++two[{row[t - 2] % 8, row[t - 1]}][row[t]];
    }
  }
  const auto entropy = [](const auto& table) {
    double nats = 0, total = 0;
    for (const auto& [context, counts] : table) {
      double sum = 0;
      for (const auto& [token, count] : counts) sum += count;
      for (const auto& [token, count] : counts) nats -= count * std::log(count / sum);
      total += sum;
    }
    return nats / total;
  };
  EXPECT_LT(entropy(two), 1.9);
  EXPECT_GT(entropy(one), entropy(two) + 0.5);
}

TEST(UniformRows, AreUniformOverTheVocabulary) {
  UniformRows rows(3, 10, 100, 0);
  std::vector<int32_t> row(100001);
  ASSERT_OK(rows.Read(0, row));
  std::vector<int> counts(10);
  for (const int32_t token : row) {
    ASSERT_GE(token, 0);
    ASSERT_LT(token, 10);
    ++counts[token];
  }
  // 10,000 each; five standard deviations are 474.
  for (const int count : counts) EXPECT_NEAR(count, 10000, 480);
}

}  // namespace
}  // namespace nsa::train
