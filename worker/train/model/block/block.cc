#include "worker/train/model/block/block.h"

#include <utility>
#include <vector>

#include "common/base/status.h"
#include "kernels/nn/activation.h"
#include "kernels/nn/bias.h"
#include "kernels/nn/rms_norm.h"
#include "kernels/nn/swiglu.h"
#include "kernels/nsa/layer/projections.h"
#include "worker/train/model/context/head_exchange.h"
#include "worker/train/model/linear.h"

namespace nsa::train {
namespace {

ConstTensor View(const Arena& arena, const Place& place) {
  return place.size == 0 ? ConstTensor() : arena.weight(place.offset, place.size);
}

Tensor View(Arena* arena, const Place& place) {
  return place.size == 0 ? Tensor()
                         : Tensor(arena->of(Slice{place.offset, place.offset + place.size}));
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

// Where h1, h2 and a are: saved, or in the workspace.
Tensor SavedOr(const BlockContext& block, const ActivationArena::Slot& saved,
               const ActivationArena::Slot& workspace) {
  return block.arena[saved.size > 0 ? saved : workspace];
}
Tensor H1(const BlockContext& block) {
  return SavedOr(block, block.activations.h1, block.workspace.h);
}
Tensor H2(const BlockContext& block) {
  return SavedOr(block, block.activations.h2, block.workspace.h);
}

// h1 = RMSNorm1(x)
absl::Status AttentionNorm(const BlockContext& block, const ConstTensor& x) {
  const BlockActivations& act = block.activations;
  return RmsNorm(block.exec, {.rows = block.config.rows(),
                              .dim = block.config.dim,
                              .x = x,
                              .weight = View(block.parameters, block.places.norm1),
                              .y = H1(block),
                              .rstd = block.arena[act.rstd1],
                              .eps = block.attention.norm_eps});
}

// h2 = RMSNorm2(mid), u = fc1(h2)
absl::Status MlpInput(const BlockContext& block) {
  const ModelConfig& config = block.config;
  const BlockActivations& act = block.activations;
  const ActivationArena& arena = block.arena;
  const int64_t rows = config.rows();
  NSA_RETURN_IF_ERROR(RmsNorm(block.exec, {.rows = rows,
                                           .dim = config.dim,
                                           .x = arena[act.mid],
                                           .weight = View(block.parameters, block.places.norm2),
                                           .y = H2(block),
                                           .rstd = arena[act.rstd2],
                                           .eps = block.attention.norm_eps}));
  return Linear(block.exec, {rows, config.dim, config.mlp_inputs()}, H2(block),
                View(block.parameters, block.places.fc1), arena[act.u]);
}

// y = mid + fc2(act(u))
absl::Status MlpOutput(const BlockContext& block, const Tensor& y) {
  const ModelConfig& config = block.config;
  const ActivationArena& arena = block.arena;
  const Tensor a = SavedOr(block, block.activations.a, block.workspace.hidden);
  const Tensor u = arena[block.activations.u];
  NSA_RETURN_IF_ERROR(
      config.swiglu
          ? Swiglu(block.exec, {.rows = config.rows(), .width = config.hidden, .x = u, .y = a})
          : Activate(block.exec, {.x = u, .y = a, .kind = config.activation}));
  return Linear(block.exec, {config.rows(), config.hidden, config.dim}, a,
                View(block.parameters, block.places.fc2), y, /*add=*/arena[block.activations.mid]);
}

// The exchange of matrices with these segments within the context group.
HeadExchange Exchange(const BlockContext& block, std::vector<int64_t> widths) {
  return {.group = block.group,
          .batch = block.attention.shape.batch,
          .rows = block.config.rows(),
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
  const LinearShape shape = {block.config.rows(), block.config.dim,
                             block.config.ProjectionWidthOf(attention)};
  NSA_RETURN_IF_ERROR(Linear(block.exec, shape, H1(block),
                             View(block.parameters, block.places.projections), arena[work.wide]));
  if (const Place& bias = block.places.projection_bias; bias.size > 0) {
    NSA_RETURN_IF_ERROR(AddBias(block.exec, {.rows = shape.rows,
                                             .width = shape.out,
                                             .bias = View(block.parameters, bias),
                                             .y = arena[work.wide]}));
  }
  if (block.group != nullptr) {
    NSA_RETURN_IF_ERROR(
        ExchangeProjections(block).ToHeads(block.exec, arena[work.wide], arena[work.wide]));
  }
  const NsaLayerSaved saved = LayoutSaved(attention, arena[act.saved]);
  return SplitProjections(block.exec,
                          {.config = attention,
                           .wide = arena[work.wide],
                           .q_rotated = saved.q,
                           .k = saved.k,
                           .v = Tensors<Tensor>(arena, act.v),
                           .q_rstd = saved.q_rstd,
                           .k_rstd = saved.k_rstd,
                           .norm_weights = HeadNormWeightsOf(block.parameters, block.places),
                           .q_unit = saved.q_unit,
                           .k_unit = saved.k_unit});
}

absl::Status AttentionForward(const BlockContext& block, const BlockStatistics& statistics) {
  const BlockActivations& act = block.activations;
  const ActivationArena& arena = block.arena;
  const Tensor o = OutputOfHeads(block);
  NSA_RETURN_IF_ERROR(
      NsaLayer(block.exec, {.config = block.attention,
                            .params = AttentionParams(block.parameters, block.places),
                            .rotated = true,
                            .q = arena[block.workspace.wide],
                            .q_stride = ProjectionWidth(block.attention),
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
  return {config.rows(), config.output_width(), config.dim};
}

// What the backward of the MLP's activation leaves: its output, and the gradient of fc1's output.
struct ActivationBackward {
  Tensor a, du;
};

// The workspace `hidden` holds the gradient of a. What forward did not save takes the place of an
// input that nothing reads any more.
absl::StatusOr<ActivationBackward> BackwardOfActivation(const BlockContext& block) {
  const ModelConfig& config = block.config;
  const BlockActivations& act = block.activations;
  const Tensor u = block.arena[act.u], da = block.arena[block.workspace.hidden];
  const bool saved = config.recompute == Recompute::kNothing;
  ActivationBackward result;
  if (config.swiglu) {
    result = {.a = saved ? block.arena[act.a] : da, .du = u};
    NSA_RETURN_IF_ERROR(SwigluBackward(block.exec, {.rows = config.rows(),
                                                    .width = config.hidden,
                                                    .dy = da,
                                                    .x = u,
                                                    .dx = u,
                                                    .y = saved ? Tensor() : da}));
    return result;
  }
  result = {.a = saved ? block.arena[act.a] : u, .du = da};
  NSA_RETURN_IF_ERROR(ActivateBackward(
      block.exec,
      {.dy = da, .x = u, .dx = da, .kind = config.activation, .y = saved ? Tensor() : u}));
  return result;
}

absl::Status AttentionGradients(const BlockContext& block, const Tensor& dx, Arena* gradients) {
  const BlockPlaces& p = block.places;
  const BlockActivations& act = block.activations;
  const BlockWorkspace& work = block.workspace;
  const ActivationArena& arena = block.arena;
  NSA_RETURN_IF_ERROR(LinearBackward(block.exec, OutShape(block.config), dx, arena[act.o],
                                     View(block.parameters, p.out), arena[work.d_o],
                                     View(gradients, p.out), block.overwrite));
  if (block.group != nullptr) {
    NSA_RETURN_IF_ERROR(
        ExchangeOutput(block).ToHeads(block.exec, arena[work.d_o], arena[work.d_o]));
  }
  NsaLayerBackwardArgs args{.config = block.attention,
                            .params = AttentionParams(block.parameters, p),
                            .v = Tensors<ConstTensor>(arena, act.v),
                            .doc_start = block.doc_start,
                            .o = OutputOfHeads(block),
                            .saved = arena[act.saved],
                            .workspace = arena[work.attention],
                            .d_o = arena[work.d_o],
                            .grads = AttentionView(gradients, p)};
  if (WritesWide(block.attention)) {
    args.wide = arena[work.wide];
  } else {
    args.dq = arena[work.dq];
    args.dk = Tensors<Tensor>(arena, work.dk);
    args.dv = Tensors<Tensor>(arena, work.dv);
    args.rotated = true;
  }
  return NsaLayerBackward(block.exec, args);
}

// wide ← the gradient of the projections, from those of their parts, where NsaLayerBackward() has
// not written it.
absl::Status JoinGradients(const BlockContext& block, Arena* gradients) {
  const NsaLayerConfig& attention = block.attention;
  if (WritesWide(attention)) return absl::OkStatus();
  const BlockWorkspace& work = block.workspace;
  const ActivationArena& arena = block.arena;
  const NsaLayerSaved saved = LayoutSaved(attention, arena[block.activations.saved]);
  return JoinProjections(block.exec,
                         {.config = attention,
                          .dq = arena[work.dq],
                          .dq_mean = LayoutMeanGradient(attention, arena[work.attention]),
                          .dk = Tensors<Tensor>(arena, work.dk),
                          .dv = Tensors<ConstTensor>(arena, work.dv),
                          .wide = arena[work.wide],
                          .q_rotated = saved.q,
                          .q_rstd = saved.q_rstd,
                          .k_rotated = ReadOnly(saved.k),
                          .k_rstd = ReadOnly(saved.k_rstd),
                          .norm_weights = HeadNormWeightsOf(block.parameters, block.places),
                          .q_unit = saved.q_unit,
                          .k_unit = ReadOnly(saved.k_unit),
                          .dq_weight = View(gradients, block.places.q_norm),
                          .dk_weight = View(gradients, block.places.k_norm)});
}

absl::Status ProjectionsBackward(const BlockContext& block, const ConstTensor& x, const Tensor& dx,
                                 Arena* gradients) {
  const BlockPlaces& p = block.places;
  const BlockWorkspace& work = block.workspace;
  const ActivationArena& arena = block.arena;
  const LinearShape shape = {block.config.rows(), block.config.dim,
                             block.config.ProjectionWidthOf(block.attention)};
  NSA_RETURN_IF_ERROR(JoinGradients(block, gradients));
  if (block.group != nullptr) {
    NSA_RETURN_IF_ERROR(
        ExchangeProjections(block).ToTokens(block.exec, arena[work.wide], arena[work.wide]));
  }
  if (p.projection_bias.size > 0) {
    NSA_RETURN_IF_ERROR(BiasGradient(block.exec, {.rows = shape.rows,
                                                  .width = shape.out,
                                                  .dy = arena[work.wide],
                                                  .dbias = View(gradients, p.projection_bias)}));
  }
  const bool has_h1 = block.config.recompute == Recompute::kNothing;
  const Tensor h1 = H1(block);
  NSA_RETURN_IF_ERROR(LinearInputGradient(block.exec, shape, arena[work.wide],
                                          View(block.parameters, p.projections), arena[work.dh]));
  NSA_RETURN_IF_ERROR(RmsNormBackward(block.exec, {.rows = shape.rows,
                                                   .dim = block.config.dim,
                                                   .dy = arena[work.dh],
                                                   .x = x,
                                                   .weight = View(block.parameters, p.norm1),
                                                   .rstd = arena[block.activations.rstd1],
                                                   .dx = dx,
                                                   .dweight = View(gradients, p.norm1),
                                                   .y = has_h1 ? Tensor() : h1}));
  return LinearWeightGradient(block.exec, shape, arena[work.wide], h1,
                              View(gradients, p.projections), block.overwrite);
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

HeadNormWeights HeadNormWeightsOf(const Arena& parameters, const BlockPlaces& places) {
  return {.q = View(parameters, places.q_norm), .k = View(parameters, places.k_norm)};
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
  NSA_RETURN_IF_ERROR(MlpInput(block));
  return y.wanted() ? MlpOutput(block, y) : absl::OkStatus();
}

absl::Status BlockRecomputeMlp(const BlockContext& block) { return MlpInput(block); }

absl::Status BlockMlpBackward(const BlockContext& block, const Tensor& dx, Arena* gradients) {
  const Exec& exec = block.exec;
  const ModelConfig& config = block.config;
  const BlockPlaces& p = block.places;
  const BlockActivations& act = block.activations;
  const ActivationArena& arena = block.arena;
  const Tensor h2 = H2(block), dh = arena[block.workspace.dh];
  const int64_t rows = config.rows();
  const LinearShape fc1 = {rows, config.dim, config.mlp_inputs()},
                    fc2 = {rows, config.hidden, config.dim};
  NSA_RETURN_IF_ERROR(LinearInputGradient(exec, fc2, dx, View(block.parameters, p.fc2),
                                          arena[block.workspace.hidden]));
  NSA_ASSIGN_OR_RETURN(const ActivationBackward activation, BackwardOfActivation(block));
  const Tensor &a = activation.a, &du = activation.du;
  NSA_RETURN_IF_ERROR(
      LinearWeightGradient(exec, fc2, dx, a, View(gradients, p.fc2), block.overwrite));
  NSA_RETURN_IF_ERROR(LinearInputGradient(exec, fc1, du, View(block.parameters, p.fc1), dh));
  // Where fc1 was recomputed, its input is still there.
  const bool has_h2 = config.recompute != Recompute::kNorms;
  NSA_RETURN_IF_ERROR(RmsNormBackward(exec, {.rows = rows,
                                             .dim = config.dim,
                                             .dy = dh,
                                             .x = arena[act.mid],
                                             .weight = View(block.parameters, p.norm2),
                                             .rstd = arena[act.rstd2],
                                             .dx = dx,
                                             .dweight = View(gradients, p.norm2),
                                             .y = has_h2 ? Tensor() : h2}));
  return LinearWeightGradient(exec, fc1, du, h2, View(gradients, p.fc1), block.overwrite);
}

absl::Status BlockAttentionBackward(const BlockContext& block, const ConstTensor& x,
                                    const Tensor& dx, Arena* gradients) {
  NSA_RETURN_IF_ERROR(AttentionGradients(block, dx, gradients));
  return ProjectionsBackward(block, x, dx, gradients);
}

}  // namespace nsa::train
