#include "kernels/nn/matmul.h"

#include <gmock/gmock.h>

#include "kernels/nn/columns.h"
#include "kernels/nn/copy.h"
#include "tests/kernels/nn/values.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

struct MatmulCase {
  int64_t m, n, k;
  bool transpose_a, transpose_b, accumulate;
};

class MatmulTest : public ::testing::TestWithParam<MatmulCase> {};

TEST_P(MatmulTest, EqualsTheSumOfProducts) {
  const MatmulCase& c = GetParam();
  const std::vector<float> a = RandomValues(c.m * c.k, 1), b = RandomValues(c.k * c.n, 2);
  std::vector<float> got = RandomValues(c.m * c.n, 3);
  std::vector<double> want(c.m * c.n);
  double largest = 0;
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t j = 0; j < c.n; ++j) {
      double sum = c.accumulate ? got[i * c.n + j] : 0.0, magnitude = std::abs(sum);
      for (int64_t x = 0; x < c.k; ++x) {
        const double product = double{a[c.transpose_a ? x * c.m + i : i * c.k + x]} *
                               b[c.transpose_b ? j * c.k + x : x * c.n + j];
        sum += product;
        magnitude += std::abs(product);
      }
      want[i * c.n + j] = sum;
      largest = std::max(largest, magnitude);
    }
  }
  ASSERT_TRUE(Matmul({}, {.m = c.m,
                          .n = c.n,
                          .k = c.k,
                          .transpose_a = c.transpose_a,
                          .transpose_b = c.transpose_b,
                          .a = View(a),
                          .b = View(b),
                          .c = std::span<float>(got),
                          .accumulate = c.accumulate})
                  .ok());
  // A sum of k products in any order has k + 1 roundings, each of at most the sum of magnitudes.
  ExpectWithin(got, want, (c.k + 1) * kUnit * largest, "c");
}

INSTANTIATE_TEST_SUITE_P(Shapes, MatmulTest,
                         ::testing::Values(MatmulCase{1, 1, 1, false, false, false},
                                           MatmulCase{5, 7, 3, false, false, true},
                                           MatmulCase{5, 7, 3, true, false, false},
                                           MatmulCase{5, 7, 3, false, true, false},
                                           MatmulCase{5, 7, 3, true, true, true},
                                           MatmulCase{64, 48, 128, false, true, false},
                                           MatmulCase{48, 64, 130, true, false, true}));

TEST(Matmul, AddsAMatrixOfItsOwn) {
  const std::vector<float> a = RandomValues(5 * 3, 1), b = RandomValues(3 * 7, 2),
                           add = RandomValues(5 * 7, 3);
  std::vector<float> want = add, got(5 * 7);
  MatmulArgs args{.m = 5, .n = 7, .k = 3, .a = View(a), .b = View(b), .accumulate = true};
  args.c = std::span<float>(want);
  ASSERT_TRUE(Matmul({}, args).ok());
  args.c = std::span<float>(got), args.add = View(add);
  EXPECT_EQ(Matmul({}, args).code(), absl::StatusCode::kInvalidArgument);  // add and accumulate
  args.accumulate = false;
  ASSERT_TRUE(Matmul({}, args).ok());
  EXPECT_EQ(got, want);
  args.add.size -= 1;
  EXPECT_THAT(std::string(Matmul({}, args).message()),
              HasSubstr("add: 34 elements (must be 35 = m·n)"));
}

TEST(Matmul, ABatchIsItsProductsOneAfterAnother) {
  constexpr int64_t kBatch = 3, kM = 5, kN = 7, kK = 4;
  const std::vector<float> a = RandomValues(kBatch * kM * kK, 1),
                           b = RandomValues(kBatch * kK * kN, 2),
                           add = RandomValues(kBatch * kM * kN, 3);
  std::vector<float> got(kBatch * kM * kN), want(kBatch * kM * kN);
  MatmulArgs args{.m = kM,
                  .n = kN,
                  .k = kK,
                  .transpose_b = true,
                  .a = View(a),
                  .b = View(b),
                  .c = std::span<float>(got),
                  .add = View(add),
                  .alpha = 2.5f,
                  .beta = -0.5f,
                  .batch = kBatch};
  ASSERT_TRUE(Matmul({}, args).ok());
  args.batch = 1;
  for (int64_t i = 0; i < kBatch; ++i) {
    args.a = View(a).subspan(i * kM * kK, kM * kK), args.b = View(b).subspan(i * kK * kN, kK * kN);
    args.add = View(add).subspan(i * kM * kN, kM * kN);
    args.c = std::span(want).subspan(i * kM * kN, kM * kN);
    ASSERT_TRUE(Matmul({}, args).ok());
  }
  EXPECT_EQ(got, want);
  double first = -0.5 * add[0];
  for (int64_t x = 0; x < kK; ++x) first += 2.5 * a[x] * b[x];
  EXPECT_NEAR(got[0], first, 20 * kUnit * 10);
  args.batch = 2;
  EXPECT_THAT(std::string(Matmul({}, args).message()),
              HasSubstr("a: 20 elements (must be 40 = batch·m·k)"));
  args.batch = 0;
  EXPECT_EQ(Matmul({}, args).code(), absl::StatusCode::kInvalidArgument);
}

TEST(Matmul, RefusesABufferOfTheWrongSize) {
  const std::vector<float> a(6), b(6);
  std::vector<float> c(3);
  const absl::Status status =
      Matmul({}, {.m = 2, .n = 2, .k = 3, .a = View(a), .b = View(b), .c = std::span<float>(c)});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("c: 3 elements (must be 4 = m·n)"));
}

TEST(Matmul, RefusesABackendThatIsNotBuilt) {
  EXPECT_FALSE(Matmul({.backend = Backend::kCuda}, {.m = 1, .n = 1, .k = 1}).ok());
}

TEST(Columns, SplitAndJoinAreInverse) {
  const std::vector<float> wide = RandomValues(5 * 9, 4);
  std::vector<float> a(5 * 2), b(5 * 3), c(5 * 4), joined(5 * 9);
  const std::vector<Tensor> parts = {std::span<float>(a), std::span<float>(b), std::span<float>(c)};
  ASSERT_TRUE(SplitColumns({}, {.rows = 5, .wide = View(wide), .parts = parts}).ok());
  EXPECT_EQ(b[3 * 3 + 1], wide[3 * 9 + 2 + 1]);
  const std::vector<ConstTensor> back(parts.begin(), parts.end());
  ASSERT_TRUE(JoinColumns({}, {.rows = 5, .parts = back, .wide = std::span<float>(joined)}).ok());
  EXPECT_EQ(joined, wide);
}

TEST(Columns, RefusesPartsThatDoNotFillTheWideMatrix) {
  const std::vector<float> wide(10);
  std::vector<float> part(5);
  const std::vector<Tensor> parts = {std::span<float>(part)};
  EXPECT_EQ(SplitColumns({}, {.rows = 5, .wide = View(wide), .parts = parts}).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Copy, CopiesAndClearsBuffersLargerThanAChunk) {
  const std::vector<float> from = RandomValues(300001, 5);
  std::vector<float> to(from.size());
  ASSERT_TRUE(Copy({}, View(from), std::span<float>(to)).ok());
  EXPECT_EQ(from, to);
  std::vector<float> parts = from;
  const ElementRange ranges[] = {{1, 2}, {3, 0}, {std::ssize(parts) - 1, 1}};
  ASSERT_TRUE(ZeroRanges({}, std::span<float>(parts), ranges).ok());
  std::vector<float> want = from;
  want[1] = want[2] = want.back() = 0;
  EXPECT_EQ(parts, want);
  for (const ElementRange wrong : {ElementRange{-1, 2}, {0, -1}, {1, std::ssize(parts)}}) {
    EXPECT_EQ(ZeroRanges({}, std::span<float>(parts), {&wrong, 1}).code(),
              absl::StatusCode::kInvalidArgument);
  }
  ASSERT_TRUE(Zero({}, std::span<float>(to)).ok());
  EXPECT_EQ(to, std::vector<float>(from.size()));
}

TEST(Copy, AddToAddsEachElement) {
  const std::vector<float> from = RandomValues(300001, 5), before = RandomValues(300001, 6);
  std::vector<float> to = before;
  ASSERT_TRUE(AddTo({}, View(from), std::span<float>(to)).ok());
  for (size_t i = 0; i < to.size(); ++i) ASSERT_EQ(to[i], before[i] + from[i]) << i;
  EXPECT_EQ(AddTo({}, View(from), std::span<float>(to).first(3)).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nsa
