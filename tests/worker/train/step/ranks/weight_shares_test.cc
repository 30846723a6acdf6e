// runtime.shard: parameters on the CPU: the memory that it takes, and everything beside a step that
// reads weights.
#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/train/step/ranks/shares_jobs.h"
#include "worker/train/model/state.h"

namespace nsa::train {
namespace {

class WeightShares : public ::testing::Test {
 protected:
  v1::JobSpec JobFor(const std::string& out, v1::Shard shard) const {
    return SharesJob(dir_, out, v1::OPTIMIZER_ADAMW, shard);
  }

  const TempDir dir_;
};

// docs/two_gpus.md: 16 / R bytes a parameter, and one part of weights and of gradients.
TEST_F(WeightShares, TakeTheMemoryOfAShareAndOfTheLargestParts) {
  constexpr int kWorld = 3;
  const v1::JobSpec spec = JobFor("out", v1::SHARD_PARAMETERS);
  const ParameterLayout layout(spec);
  for (int rank = 0; rank < kWorld; ++rank) {
    const auto state = ModelState::Create(spec, &layout, Backend::kCpu, kWorld, rank);
    ASSERT_OK(state);
    const int64_t share = (*state)->share().size();
    EXPECT_EQ((*state)->parameters.bytes(), 4 * share);
    EXPECT_EQ((*state)->gradients.bytes(), 4 * (share + ModelState::kGradientExtras));
    EXPECT_EQ((*state)->optimizer.first_moment().bytes(), 4 * share);
    EXPECT_EQ((*state)->optimizer.second_moment().bytes(), 4 * share);
    int64_t largest = 0;
    for (int32_t part = -1; part <= spec.model().n_layers(); ++part) {
      largest = std::max(largest, (*state)->weights->part(part).size());
    }
    EXPECT_EQ((*state)->weights->bytes(), 4 * largest);
    EXPECT_EQ((*state)->bytes(), 16 * share + 4 * ModelState::kGradientExtras + 4 * largest +
                                     (*state)->window->bytes() +
                                     (*state)->model->activation_bytes());
  }
  const auto alone = ModelState::Create(spec, &layout, Backend::kCpu, 1, 0);
  ASSERT_OK(alone);
  EXPECT_FALSE((*alone)->weights.has_value()) << "there is nothing to divide";
}

TEST_F(WeightShares, OfAModelWhoseHeadIsItsEmbeddingAreRefused) {
  v1::JobSpec spec = JobFor("out", v1::SHARD_PARAMETERS);
  spec.mutable_model()->set_tie_embeddings(true);
  const ParameterLayout layout(spec);
  EXPECT_EQ(ModelState::Create(spec, &layout, Backend::kCpu, 2, 0).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Validations and audits between the steps gather the weights, too.
TEST_F(WeightShares, ValidateAndAuditLikeWholeWeights) {
  const auto run = [&](v1::Shard shard) {
    v1::JobSpec spec = JobFor(std::string(ShardName(shard)), shard);
    spec.mutable_nsa()->set_audit_every(3);
    spec.mutable_runtime()->set_gradient_checkpointing(true);
    const TempDir runs;
    auto ranks = RunJob(runs, spec, {.world = 2});
    for (const RankResult& rank : ranks) {
      EXPECT_EQ(rank.finished.outcome(), v1::OUTCOME_COMPLETED) << rank.finished.text();
    }
    return ranks;
  };
  const auto whole = run(v1::SHARD_NONE), divided = run(v1::SHARD_PARAMETERS);
  for (const size_t rank : {0, 1}) {
    ASSERT_EQ(divided[rank].steps.size(), whole[rank].steps.size());
    for (size_t step = 0; step < whole[rank].steps.size(); ++step) {
      const v1::StepRecord &want = whole[rank].steps[step], &got = divided[rank].steps[step];
      EXPECT_EQ(got.layers(1).has_audit(), (step + 1) % 3 == 0);
      ASSERT_EQ(got.layers_size(), want.layers_size());
      for (int layer = 0; layer < want.layers_size(); ++layer) {
        EXPECT_EQ(got.layers(layer).SerializeAsString(), want.layers(layer).SerializeAsString());
      }
    }
  }
  ASSERT_EQ(divided[0].evals.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(divided[0].evals[i].loss(), whole[0].evals[i].loss());
}

// Steps of several passes have the bits of divided gradients, which add up the passes in the same
// order.
TEST_F(WeightShares, GiveTheBitsOfDividedGradientsWhereMicroBatchesAreAccumulated) {
  for (const int world : {2, 3}) {
    std::vector<std::vector<StepBits>> bits;
    for (const v1::Shard shard : {v1::SHARD_GRADIENTS, v1::SHARD_PARAMETERS}) {
      v1::JobSpec spec = JobFor(absl::StrCat(world, shard), shard);
      spec.mutable_train()->set_accumulate_grad_batches(3);
      bits.push_back(RunToTheEnd(spec, world));
      EXPECT_TRUE(Load(spec, 12) ==
                  Load(JobFor(absl::StrCat(world, v1::SHARD_GRADIENTS), shard), 12));
    }
    EXPECT_EQ(bits[1], bits[0]);
  }
}

TEST_F(WeightShares, OfRanksThatShareSequencesHaveTheBitsOfWholeWeights) {
  std::vector<std::vector<StepBits>> bits;
  for (const v1::Shard shard : {v1::SHARD_NONE, v1::SHARD_PARAMETERS}) {
    v1::JobSpec spec = JobFor(absl::StrCat(shard), shard);
    spec.mutable_resources()->set_gpus(2);
    spec.mutable_resources()->set_context_parallel(2);
    bits.push_back(RunToTheEnd(spec, 2));
  }
  EXPECT_EQ(bits[1], bits[0]);
}

// Each rank reads the weights of its share from the checkpoint of another job.
TEST_F(WeightShares, BeginWithTheWeightsOfACheckpoint) {
  const v1::JobSpec origin = JobFor("origin", v1::SHARD_NONE);
  RunToTheEnd(origin, 2);
  std::vector<std::vector<StepBits>> bits;
  for (const v1::Shard shard : {v1::SHARD_NONE, v1::SHARD_PARAMETERS}) {
    v1::JobSpec spec = JobFor(absl::StrCat(shard), shard);
    spec.mutable_restart()->set_init(
        (CheckpointsDir(origin.train().out_dir()) / CheckpointName(12)).string());
    bits.push_back(RunToTheEnd(spec, 3));
  }
  EXPECT_EQ(bits[1], bits[0]);
}

// The weights of a share exist once, so what the ranks hash is the same whatever they are; it is
// the hash of whole weights.
TEST_F(WeightShares, HaveTheHashOfWholeWeights) {
  const auto hashes = [](const std::vector<StepBits>& bits) {
    std::vector<uint64_t> all;
    for (const StepBits& step : bits) all.push_back(step.hash);
    return all;
  };
  const auto whole = hashes(RunToTheEnd(JobFor("whole", v1::SHARD_NONE), 2));
  EXPECT_EQ(hashes(RunToTheEnd(JobFor("divided", v1::SHARD_PARAMETERS), 2)), whole);
  EXPECT_NE(whole[1], 0u);
}

}  // namespace
}  // namespace nsa::train
