#include "kernels/nsa/layer/nsa_layer.h"

#include <array>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "kernels/check.h"
#include "kernels/cuda/side.h"
#include "kernels/nn/copy.h"
#include "kernels/nsa/branch/compressed_attention.h"
#include "kernels/nsa/branch/selected_attention.h"
#include "kernels/nsa/branch/window_attention.h"
#include "kernels/nsa/layer/check_branches.h"
#include "kernels/nsa/layer/projections.h"
#include "kernels/nsa/layer/rotation.h"
#include "kernels/nsa/select/select_blocks.h"

namespace nsa {
namespace {

absl::Status CheckBytes(const char* name, const Tensor& bytes, int64_t size) {
  NSA_RETURN_IF_ERROR(CheckTensor(name, bytes, size, DType::kU8, "bytes of the config"));
  if (reinterpret_cast<uintptr_t>(bytes.data) % 16 != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: address %p (16-byte aligned); align it", name, bytes.data));
  }
  return absl::OkStatus();
}

// The weights of normalized heads belong to the rotation; a layer does none here.
absl::Status CheckRotated(const NsaLayerConfig& config, bool rotated) {
  if (rotated || !config.qk_norm_weights) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "rotated: false with qk_norm_weights (must be true); have SplitProjections rotate");
}

absl::Status Check(const Exec& exec, const NsaLayerArgs& args) {
  const NsaLayerConfig& config = args.config;
  const NsaShape& shape = config.shape;
  NSA_RETURN_IF_ERROR(config.Validate());
  NSA_RETURN_IF_ERROR(CheckRotated(config, args.rotated));
  if (!args.rotated) {
    NSA_RETURN_IF_ERROR(CheckTensor("q", args.q, shape.q_size(), config.dtype, "B·S·H·dk"));
    NSA_RETURN_IF_ERROR(CheckBranches("k", config, args.k, shape.k_size(), "B·S·G·dk"));
  }
  NSA_RETURN_IF_ERROR(CheckBranches("v", config, args.v, shape.v_size(), "B·S·G·dv"));
  NSA_RETURN_IF_ERROR(CheckBytes("saved", args.saved, NsaLayerSavedBytes(config)));
  NSA_RETURN_IF_ERROR(CheckBytes("workspace", args.workspace, NsaLayerWorkspaceBytes(config)));
  NSA_RETURN_IF_ERROR(CheckTensor("o", args.o, shape.o_size(), config.dtype, "B·S·H·dv"));
  NSA_RETURN_IF_ERROR(
      CheckOptional("keys_read", args.keys_read, kBranches, DType::kI64, "kBranches"));
  NSA_RETURN_IF_ERROR(CheckDocStart(exec, shape, args.doc_start));
  return CheckBackend(exec, "attention", config.dtype);
}

absl::Status CheckGradients(const NsaLayerBackwardArgs& args) {
  const NsaLayerConfig& config = args.config;
  const NsaShape& shape = config.shape;
  const bool wide = args.wide.wanted();
  if (wide && (!WritesWide(config) || args.rotated)) {
    return absl::InvalidArgumentError(
        "wide: given (in bf16 only, without qk_norm and without `rotated`); pass dq, dk and dv");
  }
  if (wide) {
    return CheckTensor("wide", args.wide,
                       int64_t{1} * shape.batch * shape.seq_len * ProjectionWidth(config),
                       config.dtype, "B·S·width");
  }
  NSA_RETURN_IF_ERROR(CheckTensor("dq", args.dq, shape.q_size(), config.dtype, "B·S·H·dk"));
  NSA_RETURN_IF_ERROR(CheckBranches("dk", config, args.dk, shape.k_size(), "B·S·G·dk"));
  return CheckBranches("dv", config, args.dv, shape.v_size(), "B·S·G·dv");
}

absl::Status Check(const Exec& exec, const NsaLayerBackwardArgs& args) {
  const NsaLayerConfig& config = args.config;
  const NsaShape& shape = config.shape;
  NSA_RETURN_IF_ERROR(config.Validate());
  NSA_RETURN_IF_ERROR(CheckRotated(config, args.rotated));
  NSA_RETURN_IF_ERROR(CheckBranches("v", config, args.v, shape.v_size(), "B·S·G·dv"));
  NSA_RETURN_IF_ERROR(CheckTensor("o", args.o, shape.o_size(), config.dtype, "B·S·H·dv"));
  NSA_RETURN_IF_ERROR(CheckBytes("saved", args.saved, NsaLayerSavedBytes(config)));
  NSA_RETURN_IF_ERROR(CheckBytes("workspace", args.workspace, NsaLayerWorkspaceBytes(config)));
  NSA_RETURN_IF_ERROR(CheckTensor("d_o", args.d_o, shape.o_size(), config.dtype, "B·S·H·dv"));
  NSA_RETURN_IF_ERROR(CheckGradients(args));
  NSA_RETURN_IF_ERROR(CheckDocStart(exec, shape, args.doc_start));
  return CheckBackend(exec, "attention_backward", config.dtype);
}

// --- forward, in the order of the header ---

// Where a branch writes its output: where the gate reads it, or the layer's output without a gate.
Tensor OutputOf(const NsaLayerArgs& args, const NsaLayerSaved& saved, Branch branch) {
  return args.config.has_gate() ? saved.o[branch] : args.o;
}

Tensor KeysReadOf(const NsaLayerArgs& args, Branch branch) {
  if (!args.keys_read.wanted()) return {};
  return {static_cast<int64_t*>(args.keys_read.data) + branch, 1, DType::kI64};
}

absl::Status RotateAll(const Exec& exec, const NsaLayerArgs& args, const NsaLayerSaved& saved) {
  const NsaShape& shape = args.config.shape;
  NSA_RETURN_IF_ERROR(
      Rotate(exec, args.config, shape.n_heads, args.q, saved.q, {.rstd = saved.q_rstd}));
  for (int c = 0; c < kBranches; ++c) {
    if (!args.config.branches[c]) continue;
    NSA_RETURN_IF_ERROR(Rotate(exec, args.config, shape.n_kv_groups, args.k[c], saved.k[c],
                               {.rstd = saved.k_rstd[c]}));
  }
  return absl::OkStatus();
}

absl::Status CompressAll(const Exec& exec, const NsaLayerArgs& args, const NsaLayerSaved& saved) {
  const NsaLayerConfig& config = args.config;
  const NsaShape& shape = config.shape;
  if (config.has(kCmp)) {
    return CompressKeysAndValues(exec,
                                 {.shape = shape,
                                  .width = shape.d_k,
                                  .phi = config.phi,
                                  .x = saved.k[kCmp],
                                  .params = args.params.phi_k,
                                  .hidden = saved.phi_k_hidden,
                                  .y = saved.k_cmp},
                                 {.shape = shape,
                                  .width = shape.d_v,
                                  .phi = config.phi,
                                  .x = args.v[kCmp],
                                  .params = args.params.phi_v,
                                  .hidden = saved.phi_v_hidden,
                                  .y = saved.v_cmp});
  }
  if (!config.has(kSel)) return absl::OkStatus();
  return Compress(
      exec,
      {.shape = shape, .width = shape.d_k, .phi = Phi::kAvg, .x = saved.k[kSel], .y = saved.k_cmp});
}

absl::Status CompressedBranch(const Exec& exec, const NsaLayerArgs& args,
                              const NsaLayerSaved& saved) {
  return CompressedAttention(exec, {.shape = args.config.shape,
                                    .q = saved.q,
                                    .k = saved.k_cmp,
                                    .v = saved.v_cmp,
                                    .doc_start = args.doc_start,
                                    .o = OutputOf(args, saved, kCmp),
                                    .lse = saved.lse[kCmp],
                                    .keys_read = KeysReadOf(args, kCmp),
                                    .statistics_zeroed = true});
}

absl::Status SelectedBranch(const Exec& exec, const NsaLayerArgs& args,
                            const NsaLayerSaved& saved) {
  NSA_RETURN_IF_ERROR(SelectBlocks(exec, {.shape = args.config.shape,
                                          .q = saved.q,
                                          .k = saved.k_cmp,
                                          .lse = saved.lse[kCmp],
                                          .doc_start = args.doc_start,
                                          .blocks = saved.blocks}));
  return SelectedAttention(exec, {.shape = args.config.shape,
                                  .q = saved.q,
                                  .k = saved.k[kSel],
                                  .v = args.v[kSel],
                                  .blocks = saved.blocks,
                                  .doc_start = args.doc_start,
                                  .o = OutputOf(args, saved, kSel),
                                  .lse = saved.lse[kSel],
                                  .keys_read = KeysReadOf(args, kSel),
                                  .selection_stats = args.selection_stats,
                                  .statistics_zeroed = true});
}

absl::Status WindowBranch(const Exec& exec, const NsaLayerArgs& args, const NsaLayerSaved& saved) {
  return WindowAttention(exec, {.shape = args.config.shape,
                                .q = saved.q,
                                .k = saved.k[kWin],
                                .v = args.v[kWin],
                                .doc_start = args.doc_start,
                                .o = OutputOf(args, saved, kWin),
                                .lse = saved.lse[kWin],
                                .keys_read = KeysReadOf(args, kWin),
                                .statistics_zeroed = true});
}

absl::Status CombineBranches(const Exec& exec, const NsaLayerArgs& args,
                             const NsaLayerSaved& saved) {
  return Gate(exec, {.shape = args.config.shape,
                     .kind = args.config.gate,
                     .q = args.q,
                     .q_stride = args.rotated ? args.q_stride : 0,
                     .params = args.params.gate,
                     .o_branch = ReadOnly(saved.o),
                     .gates = saved.gates,
                     .o = args.o,
                     .gate_stats = args.gate_stats,
                     .q_mean = saved.q_mean});
}

// Zeroes the statistics, which the kernels of the present branches add to.
absl::Status ZeroStatistics(const Exec& exec, const NsaLayerArgs& args) {
  if (args.statistics_zeroed) return absl::OkStatus();
  for (const Tensor& statistics : {args.keys_read, args.selection_stats}) {
    if (statistics.wanted()) NSA_RETURN_IF_ERROR(Zero(exec, statistics));
  }
  return absl::OkStatus();
}

// --- backward, in reverse order ---

// Where the gradients of the layer's inputs go. With a stride, tokens are so many elements apart.
struct InputGradients {
  Tensor dq;
  std::array<Tensor, kBranches> dk, dv;
  int64_t stride = 0;
};

// The columns of args.wide, or the tensors of the arguments.
InputGradients InputGradientsOf(const NsaLayerBackwardArgs& args) {
  if (!args.wide.wanted()) return {args.dq, args.dk, args.dv, 0};
  const NsaLayerConfig& config = args.config;
  const NsaShape& shape = config.shape;
  auto* next = static_cast<uint8_t*>(args.wide.data);
  // The next columns, for a tensor of `size` elements.
  const auto take = [&](int64_t size) {
    const Tensor columns(next, size, config.dtype);
    next += size / shape.batch / shape.seq_len * SizeOf(config.dtype);
    return columns;
  };
  InputGradients out{.dq = take(shape.q_size()), .stride = ProjectionWidth(config)};
  for (const Branch branch : kProjectionOrder) {
    if (!config.has(branch)) continue;
    out.dk[branch] = take(shape.k_size());
    out.dv[branch] = take(shape.v_size());
  }
  return out;
}

struct BackwardState {
  NsaLayerSaved saved;
  NsaLayerWorkspace workspace;
  LayerScratch scratch;
  // On CUDA with a gate, which writes them: fp32 [B, S, H, 2] in each branch's part of the scratch.
  std::array<Tensor, kBranches> stats;
  InputGradients out;
  // Where the kernels rotate the gradients back (WritesWide()): the angles, in the scratch.
  ConstTensor angles;
  bool dq_written = false;  // the first branch overwrites dq, the others add to it
};

// `exec` with its workspace reduced to the part from offset `begin` on.
Exec WithScratch(Exec exec, int64_t begin) {
  if (exec.workspace != nullptr) {
    exec.workspace = static_cast<std::byte*>(exec.workspace) + begin;
    exec.workspace_bytes -= begin;
  }
  return exec;
}

// The scratch memory must be complete before a part of it is handed out.
absl::Status CheckScratch(const Exec& exec, const LayerScratch& scratch) {
  if (exec.workspace_bytes >= scratch.bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "attention_backward: workspace: %d bytes (at least %d); plan it with PlanScratch()",
      exec.workspace_bytes, scratch.bytes));
}

// Places the statistics of the rows that the gate writes for the branches.
absl::Status PlaceStats(const Exec& exec, const NsaLayerConfig& config, BackwardState* state) {
  if (exec.backend != Backend::kCuda || !config.has_gate()) return absl::OkStatus();
  NSA_RETURN_IF_ERROR(CheckScratch(exec, state->scratch));
  const NsaShape& shape = config.shape;
  const int64_t size = int64_t{2} * shape.batch * shape.seq_len * shape.n_heads;
  for (int c = 0; c < kBranches; ++c) {
    if (!config.branches[c]) continue;
    const Exec part = WithScratch(exec, state->scratch.stats[c]);
    state->stats[c] = {part.workspace, size, DType::kF32};
  }
  return absl::OkStatus();
}

// Computes the angles by which the kernels rotate the gradients back, if they do.
absl::Status PlaceAngles(const Exec& exec, const NsaLayerBackwardArgs& args, BackwardState* state) {
  const NsaLayerConfig& config = args.config;
  if (!WritesWide(config) || args.rotated) return absl::OkStatus();
  NSA_RETURN_IF_ERROR(CheckScratch(exec, state->scratch));
  const NsaShape& shape = config.shape;
  const Tensor angles(WithScratch(exec, state->scratch.angles).workspace,
                      int64_t{1} * shape.seq_len * shape.d_k, DType::kF32);
  state->angles = angles;
  return cuda::RopeAngles(exec, shape.seq_len, shape.d_k, config.rope_base, config.rope_scale,
                          config.rope_scaling, angles);
}

// The branch whose backward is the last to run.
Branch LastBranch(const NsaLayerConfig& config) {
  return config.has(kWin) ? kWin : config.has(kSel) ? kSel : kCmp;
}

absl::Status CombineBackward(const Exec& exec, const NsaLayerBackwardArgs& args,
                             const BackwardState& state) {
  const NsaLayerSaved& saved = state.saved;
  std::array<ConstTensor, kBranches> lse;
  for (int c = 0; c < kBranches; ++c) {
    if (state.stats[c].wanted()) lse[c] = saved.lse[c];
  }
  return GateBackward(WithScratch(exec, state.scratch.gate), {.shape = args.config.shape,
                                                              .kind = args.config.gate,
                                                              .q_mean = saved.q_mean,
                                                              .params = args.params.gate,
                                                              .o_branch = ReadOnly(saved.o),
                                                              .gates = saved.gates,
                                                              .d_o = args.d_o,
                                                              .d_o_branch = state.workspace.d_o,
                                                              .lse = lse,
                                                              .stats = state.stats,
                                                              .dq_mean = state.workspace.dq_mean,
                                                              .grads = args.grads.gate});
}

// Fills the backward arguments that are the same for all branches.
BranchBackwardArgs BranchBackward(const NsaLayerBackwardArgs& args, BackwardState* state,
                                  Branch branch) {
  const bool gated = args.config.has_gate();
  BranchBackwardArgs out;
  out.shape = args.config.shape;
  out.q = state->saved.q;
  out.doc_start = args.doc_start;
  out.lse = state->saved.lse[branch];
  out.o = gated ? ConstTensor(state->saved.o[branch]) : args.o;
  // The branch's own gradient, or with statistics (or without a gate) that of the layer's output.
  const Tensor& d_o = state->workspace.d_o[branch];
  out.d_o = d_o.wanted() ? ConstTensor(d_o) : args.d_o;
  out.stats = state->stats[branch];
  out.dq = state->out.dq;
  out.dk = state->out.dk[branch];
  out.dv = state->out.dv[branch];
  out.dq_stride = out.key_stride = state->out.stride;
  out.dk_angles = state->angles;
  out.add_to_dq = state->dq_written;
  state->dq_written = true;
  if (branch == LastBranch(args.config) && state->angles.wanted()) {
    out.dq_angles = state->angles;
    if (gated) out.dq_mean = state->workspace.dq_mean;
  }
  return out;
}

absl::Status CompressedBranchBackward(const Exec& exec, const NsaLayerBackwardArgs& args,
                                      BackwardState* state) {
  const NsaLayerConfig& config = args.config;
  const NsaShape& shape = config.shape;
  const NsaLayerSaved& saved = state->saved;
  const NsaLayerWorkspace& work = state->workspace;
  auto branch = BranchBackward(args, state, kCmp);
  branch.k = saved.k_cmp;
  branch.v = saved.v_cmp;
  branch.dk = work.dk_cmp;
  branch.dv = work.dv_cmp;
  branch.key_stride = 0, branch.dk_angles = {};  // those of dk_cmp and dv_cmp
  NSA_RETURN_IF_ERROR(
      CompressedAttentionBackward(WithScratch(exec, state->scratch.branch[kCmp]), branch));
  // dk_cmp and dv_cmp are computed on the side stream, so their use must be enqueued there too.
  const Exec side = WithScratch(cuda::OnSide(exec), state->scratch.phi);
  return CompressKeysAndValuesBackward(side,
                                       {.shape = shape,
                                        .width = shape.d_k,
                                        .phi = config.phi,
                                        .x = saved.k[kCmp],
                                        .params = args.params.phi_k,
                                        .hidden = saved.phi_k_hidden,
                                        .dy = work.dk_cmp,
                                        .d_hidden = work.d_hidden_k,
                                        .dx = state->out.dk[kCmp],
                                        .grads = args.grads.phi_k,
                                        .dx_stride = state->out.stride,
                                        .dx_angles = state->angles},
                                       {.shape = shape,
                                        .width = shape.d_v,
                                        .phi = config.phi,
                                        .x = args.v[kCmp],
                                        .params = args.params.phi_v,
                                        .hidden = saved.phi_v_hidden,
                                        .dy = work.dv_cmp,
                                        .d_hidden = work.d_hidden_v,
                                        .dx = state->out.dv[kCmp],
                                        .grads = args.grads.phi_v,
                                        .dx_stride = state->out.stride});
}

absl::Status SelectedBranchBackward(const Exec& exec, const NsaLayerBackwardArgs& args,
                                    BackwardState* state) {
  auto branch = BranchBackward(args, state, kSel);
  branch.k = state->saved.k[kSel];
  branch.v = args.v[kSel];
  branch.blocks = state->saved.blocks;
  return SelectedAttentionBackward(WithScratch(exec, state->scratch.branch[kSel]), branch);
}

absl::Status WindowBranchBackward(const Exec& exec, const NsaLayerBackwardArgs& args,
                                  BackwardState* state) {
  auto branch = BranchBackward(args, state, kWin);
  branch.k = state->saved.k[kWin];
  branch.v = args.v[kWin];
  return WindowAttentionBackward(WithScratch(exec, state->scratch.branch[kWin]), branch);
}

absl::Status RotateAllBack(const Exec& exec, const NsaLayerBackwardArgs& args,
                           const NsaLayerSaved& saved) {
  const NsaShape& shape = args.config.shape;
  NSA_RETURN_IF_ERROR(RotateBack(exec, args.config, shape.n_heads, args.dq, args.dq,
                                 {.y = saved.q, .rstd = saved.q_rstd}));
  for (int c = 0; c < kBranches; ++c) {
    if (!args.config.branches[c]) continue;
    NSA_RETURN_IF_ERROR(RotateBack(exec, args.config, shape.n_kv_groups, args.dk[c], args.dk[c],
                                   {.y = saved.k[c], .rstd = saved.k_rstd[c]}));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status NsaLayer(const Exec& exec, const NsaLayerArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, args));
  const NsaLayerConfig& config = args.config;
  const NsaLayerSaved saved = LayoutSaved(config, args.saved);
  NSA_RETURN_IF_ERROR(ZeroStatistics(exec, args));
  if (!args.rotated) NSA_RETURN_IF_ERROR(RotateAll(exec, args, saved));
  // The window branch does not depend on the others: it runs on the side stream, and after it the
  // statistics of the selected branch.
  NSA_RETURN_IF_ERROR(cuda::Fork(exec));
  if (config.has(kWin)) NSA_RETURN_IF_ERROR(WindowBranch(cuda::OnSide(exec), args, saved));
  NSA_RETURN_IF_ERROR(CompressAll(exec, args, saved));
  if (config.has(kCmp)) NSA_RETURN_IF_ERROR(CompressedBranch(exec, args, saved));
  if (config.has(kSel)) NSA_RETURN_IF_ERROR(SelectedBranch(exec, args, saved));
  NSA_RETURN_IF_ERROR(cuda::Join(exec));
  if (config.has_gate()) NSA_RETURN_IF_ERROR(CombineBranches(exec, args, saved));
  return absl::OkStatus();
}

absl::Status NsaLayerBackward(const Exec& exec, const NsaLayerBackwardArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, args));
  const NsaLayerConfig& config = args.config;
  BackwardState state{.saved = LayoutSaved(config, args.saved),
                      .workspace = LayoutWorkspace(config, args.workspace),
                      .scratch = PlanScratch(config),
                      .out = InputGradientsOf(args)};
  NSA_RETURN_IF_ERROR(PlaceStats(exec, config, &state));
  NSA_RETURN_IF_ERROR(PlaceAngles(exec, args, &state));
  if (config.has_gate()) {
    NSA_RETURN_IF_ERROR(CombineBackward(exec, args, state));
    // dk and dv of all branches depend on nothing later: they run on the side stream from here on.
    NSA_RETURN_IF_ERROR(cuda::Fork(exec));
  }
  if (config.has(kCmp)) NSA_RETURN_IF_ERROR(CompressedBranchBackward(exec, args, &state));
  if (config.has(kSel)) NSA_RETURN_IF_ERROR(SelectedBranchBackward(exec, args, &state));
  if (config.has(kWin)) NSA_RETURN_IF_ERROR(WindowBranchBackward(exec, args, &state));
  NSA_RETURN_IF_ERROR(cuda::Join(exec));
  if (args.rotated || state.angles.wanted()) return absl::OkStatus();
  NSA_RETURN_IF_ERROR(RotateAllBack(exec, args, state.saved));
  if (!config.has_gate()) return absl::OkStatus();
  return AddMeanGradient(
      exec, {.shape = config.shape, .dq_mean = state.workspace.dq_mean, .dq = args.dq});
}

}  // namespace nsa
