#include "common/estimate/shares.h"

#include <algorithm>
#include <iterator>

#include "common/estimate/memory/memory.h"
#include "common/estimate/optimizer_traits.h"
#include "common/estimate/passes.h"

namespace nsa {

std::string_view RulesOut(v1::Shard shard, const v1::JobSpec& spec) {
  if (shard >= v1::SHARD_GRADIENTS && spec.model().tie_embeddings()) return "model.tie_embeddings";
  if (shard >= v1::SHARD_PARAMETERS && !spec.sample().prompts().empty()) return "sample.prompts";
  if (shard >= v1::SHARD_PARAMETERS && spec.data().allow_synthetic_fallback()) {
    return "data.allow_synthetic_fallback";
  }
  return "";
}

std::span<const v1::Shard> LevelsOf(const v1::JobSpec& spec) {
  const auto* const end = std::ranges::find_if(
      kShards, [&](v1::Shard shard) { return !RulesOut(shard, spec).empty(); });
  return {std::begin(kShards), end};
}

std::string_view ShardName(v1::Shard shard) {
  switch (shard) {
    case v1::SHARD_OPTIMIZER:
      return "optimizer";
    case v1::SHARD_GRADIENTS:
      return "gradients";
    case v1::SHARD_PARAMETERS:
      return "parameters";
    case v1::SHARD_AUTO:
      return "auto";
    default:
      return "none";
  }
}

v1::Shard ShardOf(const v1::JobSpec& spec, int32_t ranks) {
  const v1::RuntimeSpec& runtime = spec.runtime();
  if (ranks <= 1 || runtime.shard() == v1::SHARD_AUTO) return v1::SHARD_NONE;
  if (runtime.shard() != v1::SHARD_UNSPECIFIED) return runtime.shard();
  return runtime.shard_optimizer() ? v1::SHARD_OPTIMIZER : v1::SHARD_NONE;
}

void SetShard(v1::Shard shard, v1::JobSpec* spec) {
  spec->mutable_runtime()->clear_shard_optimizer();
  spec->mutable_runtime()->set_shard(shard);
}

bool ShardsOptimizer(const v1::JobSpec& spec, int32_t ranks) {
  return ShardOf(spec, ranks) >= v1::SHARD_OPTIMIZER;
}

bool ShardsGradients(const v1::JobSpec& spec, int32_t ranks) {
  return ShardOf(spec, ranks) >= v1::SHARD_GRADIENTS;
}

bool ShardsParameters(const v1::JobSpec& spec, int32_t ranks) {
  return ShardOf(spec, ranks) >= v1::SHARD_PARAMETERS;
}

bool DefaultShards(const v1::JobSpec& spec) {
  return TraitsOf(spec.train()).whole_matrices && spec.resources().gpus() > 1 &&
         spec.resources().nodes() <= 1 && ContextOf(spec) == 1;
}

void ResolveShard(int64_t memory, v1::JobSpec* spec) {
  if (spec->runtime().shard() != v1::SHARD_AUTO) return;
  const bool decides = memory > 0 && RanksOf(*spec) > 1;
  const auto fits = [&](v1::Shard shard) {
    SetShard(shard, spec);
    return !decides || TotalBytes(MemoryEstimate(*spec, RecomputeOf(*spec, memory))) <= memory;
  };
  // Where none fits the last one stays.
  static_cast<void>(std::ranges::any_of(LevelsOf(*spec), fits));
}

bool SendsBf16Gradients(const v1::JobSpec& spec, int32_t ranks) {
  return ranks > 1 && spec.runtime().gradient_precision() == v1::PRECISION_BF16;
}

}  // namespace nsa
