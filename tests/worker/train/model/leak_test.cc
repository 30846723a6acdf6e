// Detects a model that sees the tokens which it predicts. Nothing can be learnt about uniform
// random tokens, so a loss below ln V at any position means that the model sees the target.
#include <cblas.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <random>

#include "common/job/load.h"
#include "worker/train/model/model.h"
#include "worker/train/model/optimizer.h"

namespace nsa::train {
namespace {

constexpr int32_t kVocab = 16, kBatch = 8, kBucket = 8;

// One layer. Used with S = 2w, the shape at which half of the positions saw the next token in the
// old system, and with an S that no block size divides.
v1::JobSpec Job(int32_t seq_len) {
  v1::JobSpec spec;
  spec.mutable_model()->set_dim(32);
  spec.mutable_model()->set_n_layers(1);
  spec.mutable_model()->set_n_heads(4);
  spec.mutable_model()->set_n_kv_groups(2);
  spec.mutable_model()->set_d_k(16);
  spec.mutable_model()->set_d_v(16);
  spec.mutable_model()->set_vocab(kVocab);
  spec.mutable_nsa()->set_l(8);
  spec.mutable_nsa()->set_d(4);
  spec.mutable_nsa()->set_l_sel(8);
  spec.mutable_nsa()->set_n_sel(4);
  spec.mutable_nsa()->set_w(32);
  spec.mutable_train()->set_seq_len(seq_len);
  ApplyDefaults(&spec);
  return spec;
}

struct BucketLoss {
  double sum = 0, squares = 0;
  int64_t count = 0;
  double mean() const { return sum / static_cast<double>(count); }
  double error() const {  // standard error of the mean
    const double n = static_cast<double>(count);
    return std::sqrt((squares / n - mean() * mean()) / n);
  }
};

// Trains on new uniform random tokens in each step; `target_of` returns the target of a position.
// Returns the loss of the second half of the steps by position.
template <class TargetOf>
std::vector<BucketLoss> Train(int32_t seq_len, int steps, TargetOf target_of) {
  omp_set_num_threads(1);
  openblas_set_num_threads(1);
  const v1::JobSpec spec = Job(seq_len);
  const ParameterLayout layout(spec);
  Arena parameters(&layout), gradients(&layout);
  Initialize(11, &parameters);
  Optimizer optimizer(spec.train(), &layout);
  const auto model =
      Model::Create(spec, {.batch = kBatch, .seq_len = seq_len, .training = true}, &parameters);
  EXPECT_TRUE(model.ok()) << model.status();
  std::mt19937 engine(5);
  std::uniform_int_distribution<int32_t> uniform(0, kVocab - 1);
  std::vector<BucketLoss> buckets((seq_len + kBucket - 1) / kBucket);
  const int64_t rows = int64_t{kBatch} * seq_len;
  for (int step = 1; step <= steps; ++step) {
    std::vector<int32_t> stream(rows + kBatch), tokens(rows), targets(rows);
    for (int32_t& token : stream) token = uniform(engine);
    for (int64_t r = 0; r < rows; ++r) {
      const int32_t* row = stream.data() + (r / seq_len) * (seq_len + 1);
      tokens[r] = row[r % seq_len];
      targets[r] = target_of(row, r % seq_len);
    }
    std::fill(gradients.flat().begin(), gradients.flat().end(), 0.0f);
    EXPECT_TRUE((*model)->Forward({}, {tokens, targets}).ok());
    for (int64_t r = 0; step > steps / 2 && r < rows; ++r) {
      BucketLoss& bucket = buckets[r % seq_len / kBucket];
      const double loss = (*model)->token_losses()[r];
      bucket.sum += loss;
      bucket.squares += loss * loss;
      ++bucket.count;
    }
    EXPECT_TRUE((*model)->Backward({}, static_cast<float>(1.0 / rows), &gradients).ok());
    const auto norm = optimizer.GlobalNorm({}, gradients);
    EXPECT_TRUE(optimizer.Update({}, step, 3e-3, *norm, gradients, &parameters).ok());
  }
  return buckets;
}

class UniformTokens : public ::testing::TestWithParam<int32_t> {};

TEST_P(UniformTokens, NeverScoreBelowLogVAtAnyPosition) {
  const auto buckets =
      Train(GetParam(), 600, [](const int32_t* row, int64_t t) { return row[t + 1]; });
  for (size_t b = 0; b < buckets.size(); ++b) {
    // Each batch is new, so a loss is a random sample with mean ≥ ln V. A mean that is five
    // standard errors below ln V occurs by chance once in three million buckets.
    EXPECT_GT(buckets[b].mean(), std::log(double{kVocab}) - 5 * buckets[b].error())
        << "positions " << b * kBucket << " …";
    EXPECT_LT(5 * buckets[b].error(), 0.02) << "the sentinel must be able to see a leak";
  }
}

INSTANTIATE_TEST_SUITE_P(Lengths, UniformTokens, ::testing::Values(64, 77));

// The test can fail: when the target is visible, one position back, the same model learns it.
TEST(Sentinel, BarksWhenTheTargetIsInSight) {
  const auto buckets =
      Train(64, 600, [](const int32_t* row, int64_t t) { return row[t >= 1 ? t - 1 : 0]; });
  for (size_t b = 0; b < buckets.size(); ++b) {
    EXPECT_LT(buckets[b].mean(), std::log(double{kVocab}) - 5 * buckets[b].error()) << b;
  }
}

}  // namespace
}  // namespace nsa::train
