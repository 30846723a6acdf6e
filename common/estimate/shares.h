// What the ranks of a job divide, and what they send each other. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "nsa/v1/job.pb.h"

namespace nsa {

// The levels of runtime.shard that ranks can work at, each of which divides what the one before it
// does and more.
inline constexpr v1::Shard kShards[] = {v1::SHARD_NONE, v1::SHARD_OPTIMIZER, v1::SHARD_GRADIENTS,
                                        v1::SHARD_PARAMETERS};

// The key that rules a level out for this job, as "model.tie_embeddings"; empty where nothing does.
// From SHARD_GRADIENTS on model.tie_embeddings does: the gradients of a head are complete before
// all others, unless it is the embedding, whose are complete last. SHARD_PARAMETERS also
// sample.prompts: rank 0 continues them alone, with all weights; and
// data.allow_synthetic_fallback: a rank that falls back alone validates more batches than the
// others, which gather weights with it.
std::string_view RulesOut(v1::Shard shard, const v1::JobSpec& spec);

// The levels at which ranks can train this job: the first of kShards, up to one that is ruled out.
std::span<const v1::Shard> LevelsOf(const v1::JobSpec& spec);

// "none", "optimizer", "gradients", "parameters", "auto".
std::string_view ShardName(v1::Shard shard);

// What `ranks` ranks of the job divide: runtime.shard, or where that is absent what its older name
// runtime.shard_optimizer says. SHARD_NONE for one rank, and for `auto` that ResolveShard() has not
// decided.
v1::Shard ShardOf(const v1::JobSpec& spec, int32_t ranks);

// Sets runtime.shard (and takes shard_optimizer away, its older name).
void SetShard(v1::Shard shard, v1::JobSpec* spec);

// Whether each of `ranks` ranks keeps the optimizer's state of its share of the parameters only
// (worker/train/model/shares.h).
bool ShardsOptimizer(const v1::JobSpec& spec, int32_t ranks);

// Whether each also keeps the gradients of its share only (worker/train/model/gradient_window.h).
bool ShardsGradients(const v1::JobSpec& spec, int32_t ranks);

// Whether each also keeps the weights of its share only, and gathers those of a part of the model
// before it reads them (worker/train/model/weight_window.h).
bool ShardsParameters(const v1::JobSpec& spec, int32_t ranks);

// runtime.shard_optimizer of a job on GPUs that sets neither it nor runtime.shard: true with Muon
// on several GPUs of one machine, unless they share sequences. There it is faster, because each
// matrix is orthogonalized once instead of by every rank (docs/two_gpus.md has figures). With AdamW
// it gains at most 2 % of a step, and whole state lets the ranks compare their fp32 weights.
bool DefaultShards(const v1::JobSpec& spec);

// Decides runtime.shard: auto, where each rank has `memory` bytes: the first of LevelsOf() whose
// estimate (memory/memory.h) fits, or the last where none does. SHARD_NONE for one rank and where
// `memory` is not known (0). Leaves every other job as it is. The job's sizes are valid.
void ResolveShard(int64_t memory, v1::JobSpec* spec);

// Whether the gradients of `ranks` ranks travel between them in bf16: with
// runtime.gradient_precision: bf16 and more than one rank.
bool SendsBf16Gradients(const v1::JobSpec& spec, int32_t ranks);

}  // namespace nsa
