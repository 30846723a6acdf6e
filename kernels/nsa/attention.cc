#include "kernels/nsa/attention.h"

#include <cmath>

#include "absl/strings/str_format.h"
#include "common/status.h"
#include "kernels/check.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/side.h"
#include "kernels/nn/copy.h"
#include "kernels/nsa/check_branches.h"
#include "kernels/nsa/compressed_attention.h"
#include "kernels/nsa/rotation.h"
#include "kernels/nsa/select_blocks.h"
#include "kernels/nsa/window_attention.h"

namespace nsa {
namespace {

constexpr int64_t kAlignment = 64;  // of every tensor within saved and workspace

// Cuts tensors one after the other out of a block of bytes; without memory it only counts.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<uint8_t*>(base)) {}

  Tensor Take(int64_t elements, DType type) {
    uint8_t* at = base_ == nullptr || elements == 0 ? nullptr : base_ + used_;
    used_ += (elements * SizeOf(type) + kAlignment - 1) / kAlignment * kAlignment;
    return {at, elements, type};
  }
  int64_t used() const { return used_; }

 private:
  uint8_t* base_;
  int64_t used_ = 0;
};

int64_t TokenGroups(const NsaShape& shape) {
  return int64_t{1} * shape.batch * shape.seq_len * shape.n_kv_groups;
}

AttentionSaved CarveSaved(const AttentionConfig& config, Carver* carver) {
  const NsaShape& shape = config.shape;
  AttentionSaved saved;
  saved.q = carver->Take(shape.q_size(), config.dtype);
  for (int c = 0; c < kBranches; ++c) {
    if (!config.branches[c]) continue;
    saved.k[c] = carver->Take(shape.k_size(), config.dtype);
    if (config.has_gate()) saved.o[c] = carver->Take(shape.o_size(), config.dtype);
    saved.lse[c] =
        carver->Take(int64_t{1} * shape.batch * shape.seq_len * shape.n_heads, DType::kF32);
  }
  if (config.has(kCmp) || config.has(kSel)) {
    saved.k_cmp = carver->Take(shape.cmp_k_size(), config.dtype);
  }
  if (config.has(kCmp)) saved.v_cmp = carver->Take(shape.cmp_v_size(), config.dtype);
  if (config.has_phi()) {
    const int64_t rows = int64_t{1} * shape.batch * shape.cmp_blocks() * shape.n_kv_groups;
    saved.phi_k_hidden = carver->Take(rows * PhiHidden(shape.d_k), config.dtype);
    saved.phi_v_hidden = carver->Take(rows * PhiHidden(shape.d_v), config.dtype);
  }
  if (config.has(kSel)) saved.blocks = carver->Take(shape.blocks_size(), DType::kI32);
  if (config.has_gate()) {
    saved.gates = carver->Take(TokenGroups(shape) * config.n_branches(), DType::kF32);
  }
  return saved;
}

// Backward only; nothing lives in it between calls.
struct Workspace {
  std::array<Tensor, kBranches> d_o;  // [B, S, H, dv], when has_gate()
  Tensor dq_mean;                     // [B, S, G, dk], when has_gate()
  Tensor dk_cmp, dv_cmp;              // [B, S_cmp, G, dk or dv]
  Tensor d_hidden;                    // [B, S_cmp, G, m], φ mlp of keys, then of values
};

Workspace CarveWorkspace(const AttentionConfig& config, Carver* carver) {
  const NsaShape& shape = config.shape;
  Workspace workspace;
  if (config.has_gate()) {
    for (int c = 0; c < kBranches; ++c) {
      if (config.branches[c]) workspace.d_o[c] = carver->Take(shape.o_size(), config.dtype);
    }
    workspace.dq_mean = carver->Take(TokenGroups(shape) * shape.d_k, config.dtype);
  }
  if (config.has(kCmp)) {
    workspace.dk_cmp = carver->Take(shape.cmp_k_size(), config.dtype);
    workspace.dv_cmp = carver->Take(shape.cmp_v_size(), config.dtype);
  }
  if (config.has_phi()) {
    const int64_t rows = int64_t{1} * shape.batch * shape.cmp_blocks() * shape.n_kv_groups;
    workspace.d_hidden =
        carver->Take(rows * PhiHidden(std::max(shape.d_k, shape.d_v)), config.dtype);
  }
  return workspace;
}

Tensor Prefix(const Tensor& tensor, int64_t size) { return {tensor.data, size, tensor.dtype}; }

absl::Status CheckBytes(const char* name, const Tensor& bytes, int64_t size) {
  NSA_RETURN_IF_ERROR(CheckTensor(name, bytes, size, DType::kU8, "bytes of the config"));
  if (reinterpret_cast<uintptr_t>(bytes.data) % 16 != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: address %p (16-byte aligned); align it", name, bytes.data));
  }
  return absl::OkStatus();
}

absl::Status Check(const Exec& exec, const AttentionArgs& args) {
  const AttentionConfig& config = args.config;
  const NsaShape& shape = config.shape;
  NSA_RETURN_IF_ERROR(config.Validate());
  NSA_RETURN_IF_ERROR(CheckTensor("q", args.q, shape.q_size(), config.dtype, "B·S·H·dk"));
  if (!args.rotated) {
    NSA_RETURN_IF_ERROR(CheckBranches("k", config, args.k, shape.k_size(), "B·S·G·dk"));
  }
  NSA_RETURN_IF_ERROR(CheckBranches("v", config, args.v, shape.v_size(), "B·S·G·dv"));
  NSA_RETURN_IF_ERROR(CheckBytes("saved", args.saved, AttentionSavedBytes(config)));
  NSA_RETURN_IF_ERROR(CheckBytes("workspace", args.workspace, AttentionWorkspaceBytes(config)));
  NSA_RETURN_IF_ERROR(CheckTensor("o", args.o, shape.o_size(), config.dtype, "B·S·H·dv"));
  NSA_RETURN_IF_ERROR(CheckOptional("keys_read", args.keys_read, kBranches, DType::kI64, "3"));
  NSA_RETURN_IF_ERROR(CheckDocStart(exec, shape, args.doc_start));
  return CheckBackend(exec, "attention", config.dtype);
}

absl::Status Check(const Exec& exec, const AttentionBackwardArgs& args) {
  const AttentionConfig& config = args.config;
  const NsaShape& shape = config.shape;
  NSA_RETURN_IF_ERROR(config.Validate());
  NSA_RETURN_IF_ERROR(CheckTensor("q", args.q, shape.q_size(), config.dtype, "B·S·H·dk"));
  NSA_RETURN_IF_ERROR(CheckBranches("v", config, args.v, shape.v_size(), "B·S·G·dv"));
  NSA_RETURN_IF_ERROR(CheckTensor("o", args.o, shape.o_size(), config.dtype, "B·S·H·dv"));
  NSA_RETURN_IF_ERROR(CheckBytes("saved", args.saved, AttentionSavedBytes(config)));
  NSA_RETURN_IF_ERROR(CheckBytes("workspace", args.workspace, AttentionWorkspaceBytes(config)));
  NSA_RETURN_IF_ERROR(CheckTensor("d_o", args.d_o, shape.o_size(), config.dtype, "B·S·H·dv"));
  NSA_RETURN_IF_ERROR(CheckTensor("dq", args.dq, shape.q_size(), config.dtype, "B·S·H·dk"));
  NSA_RETURN_IF_ERROR(CheckBranches("dk", config, args.dk, shape.k_size(), "B·S·G·dk"));
  NSA_RETURN_IF_ERROR(CheckBranches("dv", config, args.dv, shape.v_size(), "B·S·G·dv"));
  NSA_RETURN_IF_ERROR(CheckDocStart(exec, shape, args.doc_start));
  return CheckBackend(exec, "attention_backward", config.dtype);
}

// --- forward, in the order of the header ---

// A branch's output: where the gate reads it, or the layer's when there is no gate.
Tensor OutputOf(const AttentionArgs& args, const AttentionSaved& saved, Branch branch) {
  return args.config.has_gate() ? saved.o[branch] : args.o;
}

Tensor KeysReadOf(const AttentionArgs& args, Branch branch) {
  if (!args.keys_read.wanted()) return {};
  return {static_cast<int64_t*>(args.keys_read.data) + branch, 1, DType::kI64};
}

absl::Status RotateAll(const Exec& exec, const AttentionArgs& args, const AttentionSaved& saved) {
  const NsaShape& shape = args.config.shape;
  NSA_RETURN_IF_ERROR(Rotate(exec, args.config, shape.n_heads, false, args.q, saved.q));
  for (int c = 0; c < kBranches; ++c) {
    if (!args.config.branches[c]) continue;
    NSA_RETURN_IF_ERROR(Rotate(exec, args.config, shape.n_kv_groups, false, args.k[c], saved.k[c]));
  }
  return absl::OkStatus();
}

absl::Status CompressAll(const Exec& exec, const AttentionArgs& args, const AttentionSaved& saved) {
  const AttentionConfig& config = args.config;
  const NsaShape& shape = config.shape;
  if (config.has(kCmp)) {
    NSA_RETURN_IF_ERROR(Compress(exec, {.shape = shape,
                                        .width = shape.d_k,
                                        .phi = config.phi,
                                        .x = saved.k[kCmp],
                                        .params = args.params.phi_k,
                                        .hidden = saved.phi_k_hidden,
                                        .y = saved.k_cmp}));
    return Compress(exec, {.shape = shape,
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

absl::Status CompressedBranch(const Exec& exec, const AttentionArgs& args,
                              const AttentionSaved& saved) {
  return CompressedAttention(exec, {.shape = args.config.shape,
                                    .q = saved.q,
                                    .k = saved.k_cmp,
                                    .v = saved.v_cmp,
                                    .doc_start = args.doc_start,
                                    .o = OutputOf(args, saved, kCmp),
                                    .lse = saved.lse[kCmp],
                                    .keys_read = KeysReadOf(args, kCmp)});
}

absl::Status SelectedBranch(const Exec& exec, const AttentionArgs& args,
                            const AttentionSaved& saved) {
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
                                  .selection_stats = args.selection_stats});
}

absl::Status WindowBranch(const Exec& exec, const AttentionArgs& args,
                          const AttentionSaved& saved) {
  return WindowAttention(exec, {.shape = args.config.shape,
                                .q = saved.q,
                                .k = saved.k[kWin],
                                .v = args.v[kWin],
                                .doc_start = args.doc_start,
                                .o = OutputOf(args, saved, kWin),
                                .lse = saved.lse[kWin],
                                .keys_read = KeysReadOf(args, kWin)});
}

absl::Status CombineBranches(const Exec& exec, const AttentionArgs& args,
                             const AttentionSaved& saved) {
  return Gate(exec, {.shape = args.config.shape,
                     .kind = args.config.gate,
                     .q = args.q,
                     .params = args.params.gate,
                     .o_branch = {saved.o[kCmp], saved.o[kSel], saved.o[kWin]},
                     .gates = saved.gates,
                     .o = args.o,
                     .gate_stats = args.gate_stats});
}

// Absent branches read nothing.
absl::Status ZeroKeysRead(const Exec& exec, const Tensor& keys_read) {
  return keys_read.wanted() ? Zero(exec, keys_read) : absl::OkStatus();
}

// --- backward, in reverse order ---

struct BackwardState {
  AttentionSaved saved;
  Workspace workspace;
  cuda::AttentionScratch scratch;
  bool dq_written = false;  // the first branch overwrites dq, the others add to it
};

// Exec::workspace from `begin` on.
Exec WithScratch(Exec exec, int64_t begin) {
  if (exec.workspace != nullptr) {
    exec.workspace = static_cast<std::byte*>(exec.workspace) + begin;
    exec.workspace_bytes -= begin;
  }
  return exec;
}

absl::Status CombineBackward(const Exec& exec, const AttentionBackwardArgs& args,
                             const BackwardState& state) {
  const AttentionSaved& saved = state.saved;
  return GateBackward(exec, {.shape = args.config.shape,
                             .kind = args.config.gate,
                             .q = args.q,
                             .params = args.params.gate,
                             .o_branch = {saved.o[kCmp], saved.o[kSel], saved.o[kWin]},
                             .gates = saved.gates,
                             .d_o = args.d_o,
                             .d_o_branch = state.workspace.d_o,
                             .dq_mean = state.workspace.dq_mean,
                             .grads = args.grads.gate});
}

// Fills what the three branches' backward arguments have in common.
template <class Args>
Args BranchBackward(const AttentionBackwardArgs& args, BackwardState* state, Branch branch) {
  const bool gated = args.config.has_gate();
  Args out;
  out.shape = args.config.shape;
  out.q = state->saved.q;
  out.doc_start = args.doc_start;
  out.lse = state->saved.lse[branch];
  out.o = gated ? ConstTensor(state->saved.o[branch]) : args.o;
  out.d_o = gated ? ConstTensor(state->workspace.d_o[branch]) : args.d_o;
  out.dq = args.dq;
  out.dk = args.dk[branch];
  out.dv = args.dv[branch];
  out.add_to_dq = state->dq_written;
  state->dq_written = true;
  return out;
}

absl::Status CompressedBranchBackward(const Exec& exec, const AttentionBackwardArgs& args,
                                      BackwardState* state) {
  const AttentionConfig& config = args.config;
  const NsaShape& shape = config.shape;
  const AttentionSaved& saved = state->saved;
  const Workspace& work = state->workspace;
  auto branch = BranchBackward<CompressedAttentionBackwardArgs>(args, state, kCmp);
  branch.k = saved.k_cmp;
  branch.v = saved.v_cmp;
  branch.dk = work.dk_cmp;
  branch.dv = work.dv_cmp;
  NSA_RETURN_IF_ERROR(
      CompressedAttentionBackward(WithScratch(exec, state->scratch.branch[kCmp]), branch));
  // dk_cmp and dv_cmp are the side's.
  const Exec side = WithScratch(cuda::OnSide(exec), state->scratch.phi);
  NSA_RETURN_IF_ERROR(
      CompressBackward(side, {.shape = shape,
                              .width = shape.d_k,
                              .phi = config.phi,
                              .x = saved.k[kCmp],
                              .params = args.params.phi_k,
                              .hidden = saved.phi_k_hidden,
                              .dy = work.dk_cmp,
                              .d_hidden = Prefix(work.d_hidden, saved.phi_k_hidden.size),
                              .dx = args.dk[kCmp],
                              .grads = args.grads.phi_k}));
  return CompressBackward(side, {.shape = shape,
                                 .width = shape.d_v,
                                 .phi = config.phi,
                                 .x = args.v[kCmp],
                                 .params = args.params.phi_v,
                                 .hidden = saved.phi_v_hidden,
                                 .dy = work.dv_cmp,
                                 .d_hidden = Prefix(work.d_hidden, saved.phi_v_hidden.size),
                                 .dx = args.dv[kCmp],
                                 .grads = args.grads.phi_v});
}

absl::Status SelectedBranchBackward(const Exec& exec, const AttentionBackwardArgs& args,
                                    BackwardState* state) {
  auto branch = BranchBackward<SelectedAttentionBackwardArgs>(args, state, kSel);
  branch.k = state->saved.k[kSel];
  branch.v = args.v[kSel];
  branch.blocks = state->saved.blocks;
  return SelectedAttentionBackward(WithScratch(exec, state->scratch.branch[kSel]), branch);
}

absl::Status WindowBranchBackward(const Exec& exec, const AttentionBackwardArgs& args,
                                  BackwardState* state) {
  auto branch = BranchBackward<WindowAttentionBackwardArgs>(args, state, kWin);
  branch.k = state->saved.k[kWin];
  branch.v = args.v[kWin];
  return WindowAttentionBackward(WithScratch(exec, state->scratch.branch[kWin]), branch);
}

absl::Status RotateAllBack(const Exec& exec, const AttentionBackwardArgs& args) {
  const NsaShape& shape = args.config.shape;
  NSA_RETURN_IF_ERROR(Rotate(exec, args.config, shape.n_heads, true, args.dq, args.dq));
  for (int c = 0; c < kBranches; ++c) {
    if (!args.config.branches[c]) continue;
    NSA_RETURN_IF_ERROR(Rotate(exec, args.config, shape.n_kv_groups, true, args.dk[c], args.dk[c]));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AttentionConfig::Validate() const {
  NSA_RETURN_IF_ERROR(shape.Validate());
  if (n_branches() == 0) {
    return absl::InvalidArgumentError("branches: none (cmp, sel, win); keep at least one");
  }
  if (!(rope_base > 1) || !std::isfinite(rope_base)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("rope_base: %g (more than 1); take 10000", rope_base));
  }
  if (!(rope_scale > 0) || !std::isfinite(rope_scale)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("rope_scale: %g (more than 0); take 1", rope_scale));
  }
  return absl::OkStatus();
}

int64_t AttentionSavedBytes(const AttentionConfig& config) {
  Carver carver(nullptr);
  CarveSaved(config, &carver);
  return carver.used();
}

int64_t AttentionWorkspaceBytes(const AttentionConfig& config) {
  Carver carver(nullptr);
  CarveWorkspace(config, &carver);
  return carver.used();
}

AttentionSaved LayoutSaved(const AttentionConfig& config, const Tensor& saved) {
  Carver carver(saved.data);
  return CarveSaved(config, &carver);
}

Tensor LayoutMeanGradient(const AttentionConfig& config, const Tensor& workspace) {
  Carver carver(workspace.data);
  return CarveWorkspace(config, &carver).dq_mean;
}

absl::Status Attention(const Exec& exec, const AttentionArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, args));
  const AttentionConfig& config = args.config;
  const AttentionSaved saved = LayoutSaved(config, args.saved);
  NSA_RETURN_IF_ERROR(ZeroKeysRead(exec, args.keys_read));
  if (!args.rotated) NSA_RETURN_IF_ERROR(RotateAll(exec, args, saved));
  // The window branch needs nothing of the others.
  NSA_RETURN_IF_ERROR(cuda::Fork(exec));
  NSA_RETURN_IF_ERROR(CompressAll(exec, args, saved));
  if (config.has(kCmp)) NSA_RETURN_IF_ERROR(CompressedBranch(exec, args, saved));
  if (config.has(kSel)) NSA_RETURN_IF_ERROR(SelectedBranch(exec, args, saved));
  if (config.has(kWin)) NSA_RETURN_IF_ERROR(WindowBranch(cuda::OnSide(exec), args, saved));
  NSA_RETURN_IF_ERROR(cuda::Join(exec));
  if (config.has_gate()) NSA_RETURN_IF_ERROR(CombineBranches(exec, args, saved));
  return absl::OkStatus();
}

absl::Status AttentionBackward(const Exec& exec, const AttentionBackwardArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, args));
  const AttentionConfig& config = args.config;
  Carver carver(args.workspace.data);
  BackwardState state{.saved = LayoutSaved(config, args.saved),
                      .workspace = CarveWorkspace(config, &carver),
                      .scratch = cuda::PlanAttentionScratch(config)};
  if (config.has_gate()) NSA_RETURN_IF_ERROR(CombineBackward(exec, args, state));
  if (config.has(kCmp)) NSA_RETURN_IF_ERROR(CompressedBranchBackward(exec, args, &state));
  if (config.has(kSel)) NSA_RETURN_IF_ERROR(SelectedBranchBackward(exec, args, &state));
  if (config.has(kWin)) NSA_RETURN_IF_ERROR(WindowBranchBackward(exec, args, &state));
  NSA_RETURN_IF_ERROR(cuda::Join(exec));
  if (args.rotated) return absl::OkStatus();
  NSA_RETURN_IF_ERROR(RotateAllBack(exec, args));
  if (!config.has_gate()) return absl::OkStatus();
  return AddMeanGradient(
      exec, {.shape = config.shape, .dq_mean = state.workspace.dq_mean, .dq = args.dq});
}

std::array<int64_t, kBranches> KeysExpected(const AttentionConfig& config,
                                            std::span<const int32_t> doc_start) {
  const NsaShape& shape = config.shape;
  return {config.has(kCmp) ? CompressedKeysExpected(shape, doc_start) : 0,
          config.has(kSel) ? SelectedKeysExpected(shape, doc_start) : 0,
          config.has(kWin) ? WindowKeysExpected(shape, doc_start) : 0};
}

}  // namespace nsa
