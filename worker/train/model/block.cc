#include "worker/train/model/block.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/nn/activation.h"
#include "kernels/nn/rms_norm.h"
#include "kernels/nsa/layer/projections.h"
#include "worker/train/model/context/head_exchange.h"
#include "worker/train/model/linear.h"

namespace nsa::train {
namespace {

int64_t Rows(const ModelConfig& config) { return config.rows(); }

ConstTensor View(const Arena& arena, const Place& place) {
  return place.size == 0 ? ConstTensor() : arena.weight(place.offset, place.size);
}

Tensor View(Arena* arena, const Place& place) {
  return place.size == 0 ? Tensor() : Tensor(arena->flat().subspan(place.offset, place.size));
}

// PhiParams from a const arena, PhiGrads from a writable one.
template <class Out, class ArenaPointer>
Out PhiView(ArenaPointer arena, const PhiPlaces& p) {
  return {.pe = View(arena, p.position),
          .w1 = View(arena, p.fc1_w),
          .b1 = View(arena, p.fc1_b),
          .w2 = View(arena, p.fc2_w),
          .b2 = View(arena, p.fc2_b)};
}

NsaLayerGrads AttentionView(Arena* arena, const BlockPlaces& p) {
  return {.gate = {.fc1_w = View(arena, p.gate_fc1_w),
                   .fc1_b = View(arena, p.gate_fc1_b),
                   .fc2_w = View(arena, p.gate_fc2_w),
                   .fc2_b = View(arena, p.gate_fc2_b)},
          .phi_k = PhiView<PhiGrads, Arena*>(arena, p.phi_k),
          .phi_v = PhiView<PhiGrads, Arena*>(arena, p.phi_v)};
}

// One tensor for each of `slots`; T is Tensor or ConstTensor.
template <class T>
std::array<T, kBranches> Tensors(const ActivationArena& arena,
                                 const std::array<ActivationArena::Slot, kBranches>& slots) {
  std::array<T, kBranches> tensors;
  for (int c = 0; c < kBranches; ++c) tensors[c] = arena[slots[c]];
  return tensors;
}

// h1 = RMSNorm1(x)
absl::Status AttentionNorm(const BlockContext& block, const ConstTensor& x) {
  const BlockActivations& act = block.activations;
  return RmsNorm(block.exec, {.rows = Rows(block.config),
                              .dim = block.config.dim,
                              .x = x,
                              .weight = View(block.parameters, block.places.norm1),
                              .y = block.arena[act.h1],
                              .rstd = block.arena[act.rstd1]});
}

// a = act(fc1(RMSNorm2(mid)))
absl::Status MlpHidden(const BlockContext& block) {
  const ModelConfig& config = block.config;
  const BlockActivations& act = block.activations;
  const ActivationArena& arena = block.arena;
  const int64_t rows = Rows(config);
  NSA_RETURN_IF_ERROR(RmsNorm(block.exec, {.rows = rows,
                                           .dim = config.dim,
                                           .x = arena[act.mid],
                                           .weight = View(block.parameters, block.places.norm2),
                                           .y = arena[act.h2],
                                           .rstd = arena[act.rstd2]}));
  NSA_RETURN_IF_ERROR(Linear(block.exec, {rows, config.dim, config.hidden}, arena[act.h2],
                             View(block.parameters, block.places.fc1), arena[act.u]));
  return Activate(block.exec, {.x = arena[act.u], .y = arena[act.a], .kind = config.activation});
}

// The exchange of matrices with these segments within the context group.
HeadExchange Exchange(const BlockContext& block, std::vector<int64_t> widths) {
  return {.group = block.group,
          .batch = block.attention.shape.batch,
          .rows = Rows(block.config),
          .widths = std::move(widths),
          .parts = block.arena[block.workspace.parts]};
}

HeadExchange ExchangeProjections(const BlockContext& block) {
  return Exchange(block, ProjectionSegments(block.attention, block.config.context));
}

HeadExchange ExchangeOutput(const BlockContext& block) {
  return Exchange(block, {block.config.output_width()});
}

// The attention's output as it computes it; without a context group that is o itself.
Tensor OutputOfHeads(const BlockContext& block) {
  const BlockActivations& act = block.activations;
  if (block.group == nullptr) return block.arena[act.o];
  return block.arena[act.o_heads.size > 0 ? act.o_heads : block.workspace.o_heads];
}

absl::Status ProjectionsForward(const BlockContext& block) {
  const BlockActivations& act = block.activations;
  const BlockWorkspace& work = block.workspace;
  const ActivationArena& arena = block.arena;
  const NsaLayerConfig& attention = block.attention;
  const LinearShape shape = {Rows(block.config), block.config.dim,
                             block.config.ProjectionWidthOf(attention)};
  NSA_RETURN_IF_ERROR(Linear(block.exec, shape, arena[act.h1],
                             View(block.parameters, block.places.projections), arena[work.wide]));
  if (block.group != nullptr) {
    NSA_RETURN_IF_ERROR(
        ExchangeProjections(block).ToHeads(block.exec, arena[work.wide], arena[work.wide]));
  }
  const NsaLayerSaved saved = LayoutSaved(attention, arena[act.saved]);
  return SplitProjections(block.exec, {.config = attention,
                                       .wide = arena[work.wide],
                                       .q = arena[act.q],
                                       .q_rotated = saved.q,
                                       .k = saved.k,
                                       .v = Tensors<Tensor>(arena, act.v),
                                       .q_rstd = saved.q_rstd,
                                       .k_rstd = saved.k_rstd});
}

absl::Status AttentionForward(const BlockContext& block, const BlockStatistics& statistics) {
  const BlockActivations& act = block.activations;
  const ActivationArena& arena = block.arena;
  const Tensor o = OutputOfHeads(block);
  NSA_RETURN_IF_ERROR(
      NsaLayer(block.exec, {.config = block.attention,
                            .params = AttentionParams(block.parameters, block.places),
                            .rotated = true,
                            .q = arena[act.q],
                            .v = Tensors<ConstTensor>(arena, act.v),
                            .doc_start = block.doc_start,
                            .saved = arena[act.saved],
                            .workspace = arena[block.workspace.attention],
                            .o = o,
                            .gate_stats = statistics.gate,
                            .selection_stats = statistics.selection,
                            .keys_read = statistics.keys_read,
                            .statistics_zeroed = statistics.zeroed}));
  if (block.group == nullptr) return absl::OkStatus();
  return ExchangeOutput(block).ToTokens(block.exec, o, arena[act.o]);
}

LinearShape OutShape(const ModelConfig& config) {
  return {Rows(config), config.output_width(), config.dim};
}

absl::Status MlpBackward(const BlockContext& block, const Tensor& dx, Arena* gradients) {
  const Exec& exec = block.exec;
  const ModelConfig& config = block.config;
  const BlockPlaces& p = block.places;
  const BlockActivations& act = block.activations;
  const ActivationArena& arena = block.arena;
  const Tensor da = arena[block.workspace.da], dh = arena[block.workspace.dh];
  const int64_t rows = Rows(config);
  NSA_RETURN_IF_ERROR(LinearBackward(exec, {rows, config.hidden, config.dim}, dx, arena[act.a],
                                     View(block.parameters, p.fc2), da, View(gradients, p.fc2)));
  NSA_RETURN_IF_ERROR(
      ActivateBackward(exec, {.dy = da, .x = arena[act.u], .dx = da, .kind = config.activation}));
  NSA_RETURN_IF_ERROR(LinearBackward(exec, {rows, config.dim, config.hidden}, da, arena[act.h2],
                                     View(block.parameters, p.fc1), dh, View(gradients, p.fc1)));
  return RmsNormBackward(exec, {.rows = rows,
                                .dim = config.dim,
                                .dy = dh,
                                .x = arena[act.mid],
                                .weight = View(block.parameters, p.norm2),
                                .rstd = arena[act.rstd2],
                                .dx = dx,
                                .dweight = View(gradients, p.norm2)});
}

absl::Status AttentionGradients(const BlockContext& block, const Tensor& dx, Arena* gradients) {
  const BlockPlaces& p = block.places;
  const BlockActivations& act = block.activations;
  const BlockWorkspace& work = block.workspace;
  const ActivationArena& arena = block.arena;
  NSA_RETURN_IF_ERROR(LinearBackward(block.exec, OutShape(block.config), dx, arena[act.o],
                                     View(block.parameters, p.out), arena[work.d_o],
                                     View(gradients, p.out)));
  if (block.group != nullptr) {
    NSA_RETURN_IF_ERROR(
        ExchangeOutput(block).ToHeads(block.exec, arena[work.d_o], arena[work.d_o]));
  }
  return NsaLayerBackward(block.exec, {.config = block.attention,
                                       .params = AttentionParams(block.parameters, p),
                                       .q = arena[act.q],
                                       .v = Tensors<ConstTensor>(arena, act.v),
                                       .doc_start = block.doc_start,
                                       .o = OutputOfHeads(block),
                                       .saved = arena[act.saved],
                                       .workspace = arena[work.attention],
                                       .d_o = arena[work.d_o],
                                       .dq = arena[work.dq],
                                       .dk = Tensors<Tensor>(arena, work.dk),
                                       .dv = Tensors<Tensor>(arena, work.dv),
                                       .rotated = true,
                                       .grads = AttentionView(gradients, p)});
}

absl::Status ProjectionsBackward(const BlockContext& block, const ConstTensor& x, const Tensor& dx,
                                 Arena* gradients) {
  const BlockPlaces& p = block.places;
  const BlockWorkspace& work = block.workspace;
  const ActivationArena& arena = block.arena;
  const NsaLayerConfig& attention = block.attention;
  const LinearShape shape = {Rows(block.config), block.config.dim,
                             block.config.ProjectionWidthOf(attention)};
  const NsaLayerSaved saved = LayoutSaved(attention, arena[block.activations.saved]);
  NSA_RETURN_IF_ERROR(
      JoinProjections(block.exec, {.config = attention,
                                   .dq = arena[work.dq],
                                   .dq_mean = LayoutMeanGradient(attention, arena[work.attention]),
                                   .dk = Tensors<Tensor>(arena, work.dk),
                                   .dv = Tensors<ConstTensor>(arena, work.dv),
                                   .wide = arena[work.wide],
                                   .q_rotated = saved.q,
                                   .q_rstd = saved.q_rstd,
                                   .k_rotated = ReadOnly(saved.k),
                                   .k_rstd = ReadOnly(saved.k_rstd)}));
  if (block.group != nullptr) {
    NSA_RETURN_IF_ERROR(
        ExchangeProjections(block).ToTokens(block.exec, arena[work.wide], arena[work.wide]));
  }
  NSA_RETURN_IF_ERROR(LinearBackward(
      block.exec, shape, arena[work.wide], arena[block.activations.h1],
      View(block.parameters, p.projections), arena[work.dh], View(gradients, p.projections)));
  return RmsNormBackward(block.exec, {.rows = shape.rows,
                                      .dim = block.config.dim,
                                      .dy = arena[work.dh],
                                      .x = x,
                                      .weight = View(block.parameters, p.norm1),
                                      .rstd = arena[block.activations.rstd1],
                                      .dx = dx,
                                      .dweight = View(gradients, p.norm1)});
}

}  // namespace

NsaLayerParams AttentionParams(const Arena& arena, const BlockPlaces& p) {
  return {.gate = {.fc1_w = View(arena, p.gate_fc1_w),
                   .fc1_b = View(arena, p.gate_fc1_b),
                   .fc2_w = View(arena, p.gate_fc2_w),
                   .fc2_b = View(arena, p.gate_fc2_b)},
          .phi_k = PhiView<PhiParams, const Arena&>(arena, p.phi_k),
          .phi_v = PhiView<PhiParams, const Arena&>(arena, p.phi_v)};
}

BlockPlaces BlockPlaces::Of(const ParameterLayout& layout, int32_t layer) {
  const auto find = [&](std::string_view name) -> Place {
    const auto found = layout.Find(
        absl::StrCat("blocks.", layer, ".", absl::string_view(name.data(), name.size())));
    return found.ok() ? Place{(*found)->offset, (*found)->size} : Place{};
  };
  const auto phi = [&](const std::string& name) -> PhiPlaces {
    return {.position = find(name + ".position"),
            .fc1_w = find(name + ".fc1.weight"),
            .fc1_b = find(name + ".fc1.bias"),
            .fc2_w = find(name + ".fc2.weight"),
            .fc2_b = find(name + ".fc2.bias")};
  };
  BlockPlaces p{.norm1 = find("norm1.weight"),
                .out = find("attn.out.weight"),
                .gate_fc1_w = find("attn.gate.fc1.weight"),
                .gate_fc1_b = find("attn.gate.fc1.bias"),
                .gate_fc2_w = find("attn.gate.fc2.weight"),
                .gate_fc2_b = find("attn.gate.fc2.bias"),
                .phi_k = phi("attn.phi_k"),
                .phi_v = phi("attn.phi_v"),
                .norm2 = find("norm2.weight"),
                .fc1 = find("mlp.fc1.weight"),
                .fc2 = find("mlp.fc2.weight")};
  // All projections lie between W_Q and `out`.
  p.projections.offset = find("attn.W_Q.weight").offset;
  p.projections.size = p.out.offset - p.projections.offset;
  return p;
}

ModelPlaces ModelPlaces::Of(const ParameterLayout& layout, int32_t layers) {
  const auto find = [&](std::string_view name) -> Place {
    const auto found = layout.Find(name);
    return found.ok() ? Place{(*found)->offset, (*found)->size} : Place{};
  };
  ModelPlaces places = {.embed = find("embed.weight"),
                        .norm_f = find("norm_f.weight"),
                        .head = find("lm_head.weight"),
                        .blocks = {}};
  for (int32_t layer = 0; layer < layers; ++layer) {
    places.blocks.push_back(BlockPlaces::Of(layout, layer));
  }
  return places;
}

Place ModelPlaces::PartOf(int32_t part) const {
  const auto layers = static_cast<int32_t>(blocks.size());
  const auto begin_of = [&](int32_t layer) {
    return layer < layers ? blocks[layer].norm1.offset : norm_f.offset;
  };
  if (part < 0) return {0, begin_of(0)};
  if (part < layers) return {begin_of(part), begin_of(part + 1) - begin_of(part)};
  return {norm_f.offset, head.offset + head.size - norm_f.offset};
}

void BlockActivations::PlanAttention(const ModelConfig& config, int32_t layer,
                                     ActivationArena* arena) {
  const NsaLayerConfig attention = config.AttentionOf(layer);
  const NsaShape& shape = attention.shape;
  const DType type = attention.dtype;
  q = arena->Plan(shape.q_size(), type);
  for (const Branch branch : kProjectionOrder) {
    if (attention.has(branch)) v[branch] = arena->Plan(shape.v_size(), type);
  }
  saved = arena->Plan(NsaLayerSavedBytes(attention), DType::kU8);
  o = arena->Plan(shape.o_size(), type);
  // Backward reads it only where it is the output of a branch.
  if (config.context > 1 && !attention.has_gate()) o_heads = arena->Plan(shape.o_size(), type);
  mid = arena->Plan(Rows(config) * config.dim, type);
}

void BlockActivations::PlanMlp(const ModelConfig& config, ActivationArena* arena) {
  const int64_t rows = Rows(config);
  const DType type = config.attention.dtype;
  rstd1 = arena->Plan(rows);
  h1 = arena->Plan(rows * config.dim, type);
  rstd2 = arena->Plan(rows);
  h2 = arena->Plan(rows * config.dim, type);
  u = arena->Plan(rows * config.hidden, type);
  a = arena->Plan(rows * config.hidden, type);
}

BlockWorkspace BlockWorkspace::Plan(const ModelConfig& config, int32_t layer, bool training,
                                    ActivationArena* arena) {
  const int64_t rows = Rows(config);
  const NsaLayerConfig attention = config.AttentionOf(layer);
  const NsaShape& shape = attention.shape;
  const DType type = attention.dtype;
  BlockWorkspace work;
  const int64_t width = config.ProjectionWidthOf(attention);
  work.wide = arena->Plan(rows * width, type);
  work.attention = arena->Plan(NsaLayerWorkspaceBytes(attention), DType::kU8);
  if (config.context > 1) {
    work.parts = arena->Plan(rows * std::max(width, config.output_width()), type);
    if (attention.has_gate()) work.o_heads = arena->Plan(shape.o_size(), type);
  }
  if (!training) return work;
  work.dq = arena->Plan(shape.q_size(), type);
  for (const Branch branch : kProjectionOrder) {
    if (!attention.has(branch)) continue;
    work.dk[branch] = arena->Plan(shape.k_size(), type);
    work.dv[branch] = arena->Plan(shape.v_size(), type);
  }
  work.d_o = arena->Plan(shape.o_size(), type);
  work.dh = arena->Plan(rows * config.dim, type);
  work.da = arena->Plan(rows * config.hidden, type);
  return work;
}

std::vector<BlockActivations> PlanActivations(const ModelConfig& config, bool training,
                                              ActivationArena* arena) {
  const bool keep = training && config.recompute != Recompute::kBlock;
  const bool share_mlp = !keep || config.recompute == Recompute::kMlp;
  BlockActivations shared;
  if (share_mlp) shared.PlanMlp(config, arena);
  std::vector<BlockActivations> blocks;
  const auto plan = [&](int32_t layer) {
    BlockActivations block = shared;
    if (!share_mlp) block.PlanMlp(config, arena);
    block.PlanAttention(config, layer, arena);
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

absl::Status BlockForward(const BlockContext& block, const ConstTensor& x, const Tensor& y,
                          const BlockStatistics& statistics) {
  const ModelConfig& config = block.config;
  const BlockPlaces& p = block.places;
  const BlockActivations& act = block.activations;
  const ActivationArena& arena = block.arena;
  NSA_RETURN_IF_ERROR(AttentionNorm(block, x));
  NSA_RETURN_IF_ERROR(ProjectionsForward(block));
  NSA_RETURN_IF_ERROR(AttentionForward(block, statistics));
  NSA_RETURN_IF_ERROR(Linear(block.exec, OutShape(config), arena[act.o],
                             View(block.parameters, p.out), arena[act.mid], /*add=*/x));
  NSA_RETURN_IF_ERROR(MlpHidden(block));
  if (!y.wanted()) return absl::OkStatus();
  return Linear(block.exec, {Rows(config), config.hidden, config.dim}, arena[act.a],
                View(block.parameters, p.fc2), y, /*add=*/arena[act.mid]);
}

absl::Status BlockRecomputeMlp(const BlockContext& block, const ConstTensor& x) {
  NSA_RETURN_IF_ERROR(AttentionNorm(block, x));
  return MlpHidden(block);
}

absl::Status BlockBackward(const BlockContext& block, const ConstTensor& x, const Tensor& dx,
                           Arena* gradients) {
  NSA_RETURN_IF_ERROR(MlpBackward(block, dx, gradients));
  NSA_RETURN_IF_ERROR(AttentionGradients(block, dx, gradients));
  return ProjectionsBackward(block, x, dx, gradients);
}

}  // namespace nsa::train
