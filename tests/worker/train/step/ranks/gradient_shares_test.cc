// runtime.shard: gradients on the CPU: which sums a rank keeps, and the memory that it takes.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/estimate/estimate.h"
#include "tests/worker/train/step/executor_ranks.h"
#include "tests/worker/train/step/ranks/shares_jobs.h"
#include "worker/train/step/executor.h"

namespace nsa::train {
namespace {

constexpr int kWorld = 2;
constexpr int kMicroBatches = 3;

// The tokens of a rank's micro-batch.
struct Rows {
  std::vector<int32_t> tokens, targets;
  TokenBatch batch() const { return {.tokens = tokens, .targets = targets}; }
};

Rows RowsOf(const v1::JobSpec& spec, int rank, int micro) {
  const int64_t count = int64_t{spec.train().batch_size()} / kWorld * spec.train().seq_len();
  const auto seed = static_cast<uint32_t>(100 * rank + 10 * micro);
  return {TinyTokens(count, spec.model().vocab(), seed + 1),
          TinyTokens(count, spec.model().vocab(), seed + 2)};
}

// Takes one step's micro-batches through the executor of each rank, up to the sums. `take` sees
// each rank's state then, one at a time.
void SumOnRanks(const v1::JobSpec& spec, const std::function<void(ModelState*)>& take) {
  std::mutex mutex;
  OnExecutors(spec, kWorld, [&](int rank, StepExecutor* executor) {
    v1::StepRecord record;
    for (int micro = 0; micro < kMicroBatches; ++micro) {
      ASSERT_OK(executor->AddMicroBatch(micro, RowsOf(spec, rank, micro).batch(), &record));
    }
    ASSERT_OK(executor->CompleteGradients(&record));
    const std::lock_guard lock(mutex);
    take(&executor->state());
  });
}

// The gradients of one micro-batch of a rank by themselves.
std::vector<float> GradientsOf(const v1::JobSpec& spec, int rank, int micro) {
  const ParameterLayout layout(spec);
  Arena parameters(&layout), gradients(&layout);
  Initialize(spec.train().seed(), &parameters);
  const auto model = Model::Create(spec,
                                   {.batch = spec.train().batch_size() / kWorld,
                                    .seq_len = spec.train().seq_len(),
                                    .training = true},
                                   &parameters);
  EXPECT_OK(model);
  EXPECT_OK((*model)->Forward({}, RowsOf(spec, rank, micro).batch()));
  EXPECT_OK((*model)->Backward({}, 1.0f / static_cast<float>(TokensPerStep(spec)), &gradients));
  return {gradients.flat().begin(), gradients.flat().end()};
}

class GradientShares : public ::testing::Test {
 protected:
  v1::JobSpec JobFor(v1::Shard shard) const {
    v1::JobSpec spec = SharesJob(dir_, "out", v1::OPTIMIZER_ADAMW, shard);
    spec.mutable_train()->set_accumulate_grad_batches(kMicroBatches);
    return spec;
  }

  const TempDir dir_;
};

// Each micro-batch is summed over the ranks, and the sums of the micro-batches are added up in
// turn. n values that are added up in fp32 differ from their sum by at most (n - 1) u Σ|value| with
// u = 2⁻²⁴ (Higham, Accuracy and Stability, 4.2, to first order in u).
TEST_F(GradientShares, AreTheSumsOverRanksOfOneMicroBatchAfterTheOther) {
  const v1::JobSpec spec = JobFor(v1::SHARD_GRADIENTS);
  const auto size = static_cast<size_t>(ParameterLayout(spec).size());
  std::vector<float> want(size);
  std::vector<double> exact(size), magnitude(size);
  for (int micro = 0; micro < kMicroBatches; ++micro) {
    const std::vector<float> first = GradientsOf(spec, 0, micro),
                             second = GradientsOf(spec, 1, micro);
    for (size_t i = 0; i < size; ++i) {
      want[i] += first[i] + second[i];
      exact[i] += static_cast<double>(first[i]) + second[i];
      magnitude[i] += std::fabs(first[i]) + std::fabs(second[i]);
    }
  }
  std::vector<float> got(size);
  SumOnRanks(spec, [&](ModelState* state) {
    const std::span<const float> own = state->gradients.flat();
    EXPECT_EQ(std::ssize(own), state->share().size()) << "no others";
    std::ranges::copy(own, got.begin() + state->share().begin);
  });
  EXPECT_TRUE(got == want);
  constexpr int kAddends = kWorld * kMicroBatches;
  for (size_t i = 0; i < size; ++i) {
    ASSERT_LE(std::fabs(got[i] - exact[i]), 1.01 * (kAddends - 1) * 0x1p-24 * magnitude[i]) << i;
  }
}

// Where each rank has all gradients it adds up its micro-batches first: the same values in another
// order, of which backward adds those of a micro-batch to the ones before it one by one.
TEST_F(GradientShares, DifferFromWholeGradientsByTheOrderOfSumsOnly) {
  std::vector<float> whole, divided(static_cast<size_t>(ParameterLayout(JobFor({})).size()));
  SumOnRanks(JobFor(v1::SHARD_NONE), [&](ModelState* state) {
    const std::span<const float> all = state->gradients.flat();
    whole.assign(all.begin(), all.end());
  });
  SumOnRanks(JobFor(v1::SHARD_GRADIENTS), [&](ModelState* state) {
    std::ranges::copy(state->gradients.flat(), divided.begin() + state->share().begin);
  });
  double squares = 0, of_difference = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    squares += static_cast<double>(whole[i]) * whole[i];
    of_difference += std::pow(static_cast<double>(whole[i]) - divided[i], 2);
  }
  // Roundings of independent sign: √n u of n additions, one for each row of a rank's batch.
  const double rows =
      1.0 * kMicroBatches * JobFor({}).train().batch_size() / kWorld * JobFor({}).train().seq_len();
  EXPECT_LT(std::sqrt(of_difference / squares), 4 * std::sqrt(rows) * 0x1p-24);
}

TEST_F(GradientShares, TakeTheMemoryOfAShareAndOfTheLargestPart) {
  const v1::JobSpec spec = JobFor(v1::SHARD_GRADIENTS);
  const ParameterLayout layout(spec);
  const auto state = ModelState::Create(spec, &layout, Backend::kCpu, kWorld, 0);
  ASSERT_OK(state);
  ASSERT_TRUE((*state)->window.has_value());
  int64_t largest = 0;
  for (const Slice& part : (*state)->window->parts()) largest = std::max(largest, part.size());
  EXPECT_EQ((*state)->window->bytes(), 4 * largest);
  EXPECT_EQ((*state)->gradients.bytes(),
            4 * ((*state)->share().size() + ModelState::kGradientExtras));
  const auto alone = ModelState::Create(spec, &layout, Backend::kCpu, 1, 0);
  ASSERT_OK(alone);
  EXPECT_FALSE((*alone)->window.has_value()) << "there is nothing to divide";
}

TEST_F(GradientShares, OfRanksThatShareSequencesHaveTheBitsOfWholeGradients) {
  std::vector<std::vector<StepBits>> bits;
  for (const v1::Shard shard : {v1::SHARD_NONE, v1::SHARD_GRADIENTS}) {
    v1::JobSpec spec =
        SharesJob(dir_, shard == v1::SHARD_NONE ? "whole" : "divided", v1::OPTIMIZER_ADAMW, shard);
    spec.mutable_resources()->set_gpus(kWorld);
    spec.mutable_resources()->set_context_parallel(kWorld);
    bits.push_back(RunToTheEnd(spec, kWorld));
  }
  EXPECT_EQ(bits[1], bits[0]);
}

// A run that accumulates is stopped, continues, and has the bits of the unbroken one.
TEST_F(GradientShares, GoOnBitForBitWhereMicroBatchesAreAccumulated) {
  v1::JobSpec whole = JobFor(v1::SHARD_GRADIENTS), broken = whole;
  broken.mutable_train()->set_out_dir(dir_ / "broken");
  const std::vector<StepBits> want = RunToTheEnd(whole, kWorld);
  RunUntil(5, broken, kWorld);
  const std::vector<StepBits> rest = RunToTheEnd(broken, kWorld, 2);
  EXPECT_TRUE(std::equal(rest.begin(), rest.end(), want.end() - std::ssize(rest)));
  EXPECT_TRUE(Load(broken, 12) == Load(whole, 12));
}

}  // namespace
}  // namespace nsa::train
