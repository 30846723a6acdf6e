// The memory of blocks: what forward saves, and the workspace. common/estimate/memory/memory.cc
// adds up the same tensors.
#include <algorithm>
#include <vector>

#include "worker/train/model/block/block.h"

namespace nsa::train {
namespace {

// The part of a workspace that the attention uses.
void PlanAttention(const ModelConfig& config, const NsaLayerConfig& attention, bool training,
                   BlockWorkspace* work, ActivationArena* arena) {
  const int64_t rows = config.rows();
  const NsaShape& shape = attention.shape;
  const DType type = attention.dtype;
  const int64_t width = config.ProjectionWidthOf(attention);
  work->wide = arena->Plan(rows * width, type);
  work->attention = arena->Plan(NsaLayerWorkspaceBytes(attention), DType::kU8);
  if (config.context > 1) {
    work->parts = arena->Plan(rows * std::max(width, config.output_width()), type);
    if (attention.has_gate()) work->o_heads = arena->Plan(shape.o_size(), type);
  }
  if (!training) return;
  if (!WritesWide(attention)) {
    work->dq = arena->Plan(shape.q_size(), type);
    for (const Branch branch : kProjectionOrder) {
      if (!attention.has(branch)) continue;
      work->dk[branch] = arena->Plan(shape.k_size(), type);
      work->dv[branch] = arena->Plan(shape.v_size(), type);
    }
  }
  work->d_o = arena->Plan(shape.o_size(), type);
}

}  // namespace

void BlockActivations::Plan(const ModelConfig& config, int32_t layer, ActivationArena* arena) {
  const NsaLayerConfig attention = config.AttentionOf(layer);
  const NsaShape& shape = attention.shape;
  const DType type = attention.dtype;
  const int64_t rows = config.rows();
  rstd1 = arena->Plan(rows);
  rstd2 = arena->Plan(rows);
  for (const Branch branch : kProjectionOrder) {
    if (attention.has(branch)) v[branch] = arena->Plan(shape.v_size(), type);
  }
  saved = arena->Plan(NsaLayerSavedBytes(attention), DType::kU8);
  o = arena->Plan(shape.o_size(), type);
  // Backward reads it only where it is the output of a branch.
  if (config.context > 1 && !attention.has_gate()) o_heads = arena->Plan(shape.o_size(), type);
  mid = arena->Plan(rows * config.dim, type);
}

void BlockActivations::PlanNorms(const ModelConfig& config, ActivationArena* arena) {
  const int64_t rows = config.rows();
  const DType type = config.attention.dtype;
  h1 = arena->Plan(rows * config.dim, type);
  h2 = arena->Plan(rows * config.dim, type);
  a = arena->Plan(rows * config.hidden, type);
}

void BlockActivations::PlanMlp(const ModelConfig& config, ActivationArena* arena) {
  u = arena->Plan(config.rows() * config.mlp_inputs(), config.attention.dtype);
}

BlockWorkspace BlockWorkspace::Plan(const ModelConfig& config, int32_t layer, bool training,
                                    ActivationArena* arena) {
  const DType type = config.attention.dtype;
  const int64_t rows = config.rows();
  BlockWorkspace work;
  const bool saved = training && config.recompute == Recompute::kNothing;
  if (!saved) work.h = arena->Plan(rows * config.dim, type);
  if (training) work.dh = arena->Plan(rows * config.dim, type);
  arena->PlanAlternatives(2, [&](int32_t which) {
    if (which == 0) {
      PlanAttention(config, config.AttentionOf(layer), training, &work, arena);
    } else {
      work.hidden = arena->Plan(rows * config.hidden, type);
    }
  });
  return work;
}

std::vector<BlockActivations> PlanActivations(const ModelConfig& config, bool training,
                                              ActivationArena* arena) {
  const bool keep = training && config.recompute != Recompute::kBlock;
  const bool share_mlp = !keep || config.recompute == Recompute::kMlp;
  const bool keep_norms = training && config.recompute == Recompute::kNothing;
  BlockActivations shared;
  if (share_mlp) shared.PlanMlp(config, arena);
  std::vector<BlockActivations> blocks;
  const auto plan = [&](int32_t layer) {
    BlockActivations block = shared;
    if (!share_mlp) block.PlanMlp(config, arena);
    if (keep_norms) block.PlanNorms(config, arena);
    block.Plan(config, layer, arena);
    blocks.push_back(block);
  };
  if (!keep) arena->PlanAlternatives(config.n_layers, plan);
  for (int32_t layer = 0; keep && layer < config.n_layers; ++layer) plan(layer);
  return blocks;
}

std::vector<BlockWorkspace> PlanWorkspaces(const ModelConfig& config, bool training,
                                           ActivationArena* arena) {
  std::vector<BlockWorkspace> blocks;
  arena->PlanAlternatives(config.n_layers, [&](int32_t layer) {
    blocks.push_back(BlockWorkspace::Plan(config, layer, training, arena));
  });
  return blocks;
}

}  // namespace nsa::train
