#include "kernels/optimizer/muon.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>

#include "tests/kernels/nn/values.h"

namespace nsa {
namespace {

using ::testing::HasSubstr;

// The formulas of muon.h in fp64, in plain loops, for one matrix.
class Reference {
 public:
  Reference(int64_t rows, int64_t columns, std::vector<double> weights)
      : rows_(rows), columns_(columns), w(std::move(weights)), m(w.size()), v(rows) {}

  void Step(std::span<const float> gradients, double scale, double lr, double decay) {
    std::vector<double> u(w.size());
    double norm = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      const double g = scale * gradients[i];
      m[i] = kBeta1 * m[i] + (1 - kBeta1) * g;
      u[i] = kBeta1 * m[i] + (1 - kBeta1) * g;
      norm += u[i] * u[i];
    }
    for (double& x : u) x /= std::sqrt(norm) + 1e-7;
    const std::vector<double> o = NewtonSchulz(u);
    std::vector<double> normed(o.size());
    double size = 0;
    for (int64_t r = 0; r < rows_; ++r) {
      double mean = 0;
      for (int64_t j = 0; j < columns_; ++j) mean += o[r * columns_ + j] * o[r * columns_ + j];
      v[r] = kBeta2 * v[r] + (1 - kBeta2) * mean / static_cast<double>(columns_);
      for (int64_t j = 0; j < columns_; ++j) {
        const int64_t i = r * columns_ + j;
        normed[i] = o[i] / (std::sqrt(v[r]) + 1e-10);
        size += normed[i] * normed[i];
      }
    }
    const double factor = 0.2 * std::sqrt(static_cast<double>(rows_ * columns_) / size);
    for (size_t i = 0; i < w.size(); ++i) w[i] -= lr * (factor * normed[i] + decay * w[i]);
  }

 private:
  static constexpr double kBeta1 = 0.95f, kBeta2 = 0.95f;
  const int64_t rows_, columns_;

  // X ← a X + (b A + c A²) X with A = X Xᵀ, or with columns for rows where there are more rows.
  std::vector<double> NewtonSchulz(std::vector<double> x) const {
    const bool tall = rows_ > columns_;
    const int64_t p = tall ? columns_ : rows_, q = tall ? rows_ : columns_;
    const auto at = [&](int64_t i, int64_t j) {
      return tall ? j * columns_ + i : i * columns_ + j;
    };
    for (int round = 0; round < 5; ++round) {
      std::vector<double> a(p * p), b(p * p), y(x.size());
      for (int64_t i = 0; i < p; ++i) {
        for (int64_t j = 0; j < p; ++j) {
          for (int64_t k = 0; k < q; ++k) a[i * p + j] += x[at(i, k)] * x[at(j, k)];
        }
      }
      for (int64_t i = 0; i < p; ++i) {
        for (int64_t j = 0; j < p; ++j) {
          double square = 0;
          for (int64_t k = 0; k < p; ++k) square += a[i * p + k] * a[k * p + j];
          b[i * p + j] = -4.7750f * a[i * p + j] + 2.0315f * square;
        }
      }
      for (int64_t i = 0; i < p; ++i) {
        for (int64_t j = 0; j < q; ++j) {
          y[at(i, j)] = 3.4445f * x[at(i, j)];
          for (int64_t k = 0; k < p; ++k) y[at(i, j)] += b[i * p + k] * x[at(k, j)];
        }
      }
      x = y;
    }
    return x;
  }

 public:
  std::vector<double> w, m, v;
};

struct Buffers {
  explicit Buffers(int64_t size) : p(RandomValues(size, 1)), m(size), v(size) {}

  MuonArgs Args(const std::vector<float>& gradients, std::span<const MuonMatrix> matrices) {
    return {.parameters = std::span<float>(p),
            .gradients = View(gradients),
            .m = std::span<float>(m),
            .v = std::span<float>(v),
            .matrices = matrices};
  }

  std::vector<float> p, m, v;
};

std::vector<double> Doubles(std::span<const float> values) {
  return {values.begin(), values.end()};
}

// A wide matrix, a tall one of the same shape transposed, two square ones, and gaps between them.
TEST(Muon, EqualsTheFormulaOverManySteps) {
  const std::array<MuonMatrix, 5> matrices = {
      {{3, 5, 12}, {70, 12, 5}, {140, 6, 6}, {176, 6, 6}, {220, 1, 7}}};
  constexpr int64_t kSize = 240;
  Buffers x(kSize);
  const std::vector<float> before = x.p;
  std::vector<Reference> want;
  for (const MuonMatrix& matrix : matrices) {
    want.emplace_back(matrix.rows, matrix.columns,
                      Doubles(std::span(x.p).subspan(matrix.offset, matrix.rows * matrix.columns)));
  }
  constexpr int kSteps = 12;
  for (int k = 1; k <= kSteps; ++k) {
    const std::vector<float> g = RandomValues(kSize, 100 + k);
    MuonArgs args = x.Args(g, matrices);
    args.lr = 0.01f, args.weight_decay = 0.1f, args.gradient_scale = 0.5f;
    ASSERT_TRUE(Muon({}, args).ok());
    for (size_t i = 0; i < matrices.size(); ++i) {
      want[i].Step(std::span(g).subspan(matrices[i].offset), 0.5f, 0.01f, 0.1f);
    }
  }
  std::vector<bool> inside(kSize);
  for (size_t i = 0; i < matrices.size(); ++i) {
    const auto& [offset, rows, columns] = matrices[i];
    SCOPED_TRACE(offset);
    const int64_t size = rows * columns;
    std::fill_n(inside.begin() + offset, size, true);
    const auto of = [&](const std::vector<float>& all) { return std::span(all).subspan(offset); };
    // An iteration rounds about 20 times and grows an error less than fivefold; O is below 1.3.
    constexpr double kOfO = 5 * 20 * 5 * kUnit;
    ExpectWithin(of(x.p).first(size), want[i].w, kSteps * (4 * kUnit + 0.01 * kOfO), "p");
    ExpectWithin(of(x.m).first(size), want[i].m, kSteps * 4 * kUnit, "m");
    ExpectWithin(of(x.v).first(rows), want[i].v, kSteps * kOfO, "v");
    for (int64_t r = rows; r < size; ++r) EXPECT_EQ(of(x.v)[r], 0) << "behind the rows' variances";
  }
  for (int64_t i = 0; i < kSize; ++i) {
    if (!inside[i]) {
      EXPECT_EQ(x.p[i], before[i]) << i << ": in no matrix";
    }
  }
}

// Orthogonal gradients are their own direction: from a permutation O is a multiple of it.
TEST(Muon, GivesEverySingularDirectionTheSameLength) {
  const std::vector<MuonMatrix> matrices = {{0, 4, 4}};
  std::vector<float> g(16);
  // Singular values 8, 1, 0.5 and 0.25 in a permutation's directions.
  g[0 * 4 + 2] = 8, g[1 * 4 + 0] = -1, g[2 * 4 + 3] = 0.5f, g[3 * 4 + 1] = 0.25f;
  Buffers x(16);
  std::fill(x.p.begin(), x.p.end(), 0.0f);
  MuonArgs args = x.Args(g, matrices);
  args.lr = 1;
  ASSERT_TRUE(Muon({}, args).ok());
  for (int i = 0; i < 16; ++i) {
    // Four elements have all of the update, whose root mean square is 0.2: each is 0.2 √(16 / 4).
    EXPECT_NEAR(x.p[i], g[i] == 0 ? 0 : (g[i] > 0 ? -0.4 : 0.4), 1e-6) << i;
  }
}

TEST(Muon, AnUpdateHasARootMeanSquareOfAFifthOfTheLearningRateInEveryRow) {
  const std::vector<MuonMatrix> matrices = {{0, 24, 8}, {192, 8, 24}};
  Buffers x(384);
  const std::vector<float> before = x.p, g = RandomValues(384, 7, 1e-4f);
  MuonArgs args = x.Args(g, matrices);
  args.lr = 0.5f;
  ASSERT_TRUE(Muon({}, args).ok());
  for (const MuonMatrix& matrix : matrices) {
    for (int64_t r = 0; r < matrix.rows; ++r) {
      double squares = 0;
      for (int64_t j = 0; j < matrix.columns; ++j) {
        const int64_t i = matrix.offset + r * matrix.columns + j;
        squares += std::pow(double{x.p[i]} - before[i], 2);
      }
      // Of the first update: later ones divide by variances that are older.
      EXPECT_NEAR(std::sqrt(squares / static_cast<double>(matrix.columns)), 0.2 * 0.5, 1e-5) << r;
    }
  }
}

TEST(Muon, AMatrixWithoutGradientsOnlyDecays) {
  const std::vector<MuonMatrix> matrices = {{0, 4, 8}};
  Buffers x(32);
  const std::vector<float> before = x.p, g(32);
  MuonArgs args = x.Args(g, matrices);
  args.lr = 0.1f, args.weight_decay = 0.5f;
  ASSERT_TRUE(Muon({}, args).ok());
  for (int i = 0; i < 32; ++i) EXPECT_FLOAT_EQ(x.p[i], before[i] * 0.95f);
}

TEST(Muon, RefusesAMatrixThatIsNotInside) {
  Buffers x(32);
  const std::vector<float> g(32);
  for (const MuonMatrix& matrix :
       {MuonMatrix{1, 4, 8}, MuonMatrix{-1, 2, 2}, MuonMatrix{0, 0, 8}}) {
    const std::vector<MuonMatrix> matrices = {matrix};
    const absl::Status status = Muon({}, x.Args(g, matrices));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("(inside 32 elements"));
  }
}

TEST(MuonPlan, BatchesDifferByOneMatrixAndFitTheScratchMemory) {
  const MuonShape shape = MuonShape::Of(3072, 768);
  EXPECT_EQ(shape.p, 768);
  EXPECT_EQ(shape.q, 3072);
  for (int64_t matrices = 1; matrices <= 200; ++matrices) {
    const int64_t size = MuonBatchSize(shape, matrices, 2);
    EXPECT_LE(MuonScratch::Of(shape, size, 2).bytes, kMuonScratchBytes);
    const int64_t batches = (matrices + size - 1) / size;
    EXPECT_GT(matrices, (batches - 1) * size) << "the last batch has a matrix";
  }
  EXPECT_EQ(MuonBatchSize(MuonShape::Of(16384, 65536), 5, 2), 1) << "one matrix always fits";
  EXPECT_EQ(MuonBatchSize(MuonShape::Of(8, 8), 1000, 2), 63) << "1000 in 16 batches";
  EXPECT_EQ(MuonBatchSize(shape, 0, 2), 0);
}

}  // namespace
}  // namespace nsa
