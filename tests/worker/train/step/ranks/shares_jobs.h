// Runs at the levels of runtime.shard, and what they leave behind.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/testing/status_matchers.h"
#include "tests/worker/train/step/trainer_jobs.h"
#include "worker/train/checkpoint/checkpoint.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {

// As Job(), with a batch that divides among 1, 2 and 3 ranks.
inline v1::JobSpec SharesJob(const TempDir& dir, const std::string& out, v1::Optimizer optimizer,
                             v1::Shard shard) {
  v1::JobSpec spec = Job(dir, out);
  spec.mutable_train()->set_batch_size(6);
  spec.mutable_train()->set_optimizer(optimizer);
  spec.mutable_runtime()->set_shard(shard);
  spec.mutable_guard()->set_hash_every(2);
  return spec;
}

// Everything that a checkpoint has of the model and the optimizer.
struct Loaded {
  std::vector<float> parameters, first_moment, second_moment;
  bool operator==(const Loaded&) const = default;
};

inline Loaded Load(const v1::JobSpec& spec, int64_t step) {
  const ParameterLayout layout(spec);
  const std::vector<float> zeros(layout.size());
  Loaded loaded = {zeros, zeros, zeros};
  const auto path = CheckpointsDir(spec.train().out_dir()) / CheckpointName(step);
  EXPECT_OK(LoadCheckpoint(path, "",
                           {.layout = &layout,
                            .parameters = loaded.parameters,
                            .first_moment = loaded.first_moment,
                            .second_moment = loaded.second_moment}));
  EXPECT_NE(loaded.first_moment, zeros);
  return loaded;
}

// What the steps of a run say: loss, norm and hash of the parameters.
struct StepBits {
  double loss = 0, norm = 0;
  uint64_t hash = 0;
  bool operator==(const StepBits&) const = default;
};

inline std::vector<StepBits> BitsOf(const RankResult& result) {
  std::vector<StepBits> bits;
  for (const v1::StepRecord& step : result.steps) {
    bits.push_back({step.loss(), step.grad_norm(), step.parameters_hash()});
  }
  return bits;
}

// Runs a job to its end on `world` ranks. Expects that the ranks agree; returns rank 0's steps.
inline std::vector<StepBits> RunToTheEnd(const v1::JobSpec& spec, int world,
                                         int64_t generation = 1) {
  const TempDir runs;
  const auto ranks = RunJob(runs, spec, {.world = world, .generation = generation});
  for (const RankResult& rank : ranks) {
    EXPECT_EQ(rank.finished.outcome(), v1::OUTCOME_COMPLETED) << rank.finished.text();
    EXPECT_FALSE(rank.HasEvent("PARAMETERS_DIFFER"));
    EXPECT_EQ(BitsOf(rank).back().hash, BitsOf(ranks[0]).back().hash);
  }
  return BitsOf(ranks[0]);
}

// The same up to step `at`, after which the ranks are stopped.
inline void RunUntil(int64_t at, const v1::JobSpec& spec, int world, int64_t generation = 1) {
  const TempDir runs;
  RunOptions options = StopAt(at, 0, world);
  options.generation = generation;
  for (const RankResult& rank : RunJob(runs, spec, options)) {
    EXPECT_EQ(rank.finished.reason(), "STOPPED_AT_STEP") << rank.finished.text();
  }
}

}  // namespace nsa::train
