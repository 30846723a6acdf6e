#include "worker/bench/families.h"

#include "common/base/status.h"
#include "kernels/nn/activation.h"
#include "kernels/nn/cross_entropy.h"
#include "kernels/nn/embedding.h"
#include "kernels/nn/matmul.h"
#include "kernels/nn/rms_norm.h"
#include "kernels/nn/rope.h"
#include "kernels/nsa/branch/compressed_attention.h"
#include "kernels/nsa/branch/window_attention.h"
#include "kernels/nsa/layer/projections.h"
#include "kernels/nsa/select/select_blocks.h"

namespace nsa::bench {
namespace {

int64_t RowsOf(const NsaShape& s) { return int64_t{1} * s.batch * s.seq_len; }
int64_t HeadRows(const NsaShape& s) { return RowsOf(s) * s.n_heads; }

// Query–key pairs of a branch over all heads: the heads of a group share the same keys.
double Pairs(const NsaShape& s, Branch branch) {
  NsaLayerConfig config{.shape = s};
  return static_cast<double>(KeysExpected(config)[branch]) * s.heads_per_group();
}
// Forward computes q·k and p·v; backward computes five such products.
double ForwardFlops(const NsaShape& s, double pairs) { return 2 * pairs * (s.d_k + s.d_v); }
double BackwardFlops(const NsaShape& s, double pairs) {
  return 2 * pairs * (3 * s.d_k + 2 * s.d_v);
}

struct BranchBytes {
  double forward, backward;
};
BranchBytes BytesOf(const NsaShape& s, int64_t keys) {
  const double q = 2.0 * s.q_size(), o = 2.0 * s.o_size();
  const double kv = 2.0 * s.batch * keys * s.n_kv_groups * (s.d_k + s.d_v);
  const double lse = 4.0 * HeadRows(s);
  return {q + kv + o + lse, 2 * q + 2 * kv + 2 * o + lse};
}

// The tensors that forward and backward of every branch take.
struct BranchTensors {
  BranchTensors(const NsaShape& s, int64_t keys, Data* data)
      : q(data->Random(s.q_size(), 1, 2)),
        k(data->Random(s.batch * keys * s.n_kv_groups * s.d_k, 2, 2)),
        v(data->Random(s.batch * keys * s.n_kv_groups * s.d_v, 3)),
        d_o(data->Random(s.o_size(), 4)),
        o(data->Out(s.o_size())),
        lse(data->Raw(HeadRows(s), DType::kF32)),
        dq(data->Out(s.q_size())),
        dk(data->Out(k.size)),
        dv(data->Out(v.size)) {}
  template <class Args>
  Args Forward(const NsaShape& s) const {
    Args args;
    args.shape = s, args.q = q, args.k = k, args.v = v, args.o = o, args.lse = lse;
    return args;
  }
  template <class Args>
  Args Backward(const NsaShape& s) const {
    Args args;
    args.shape = s, args.q = q, args.k = k, args.v = v, args.o = o, args.lse = lse, args.d_o = d_o;
    args.dq = dq, args.dk = dk, args.dv = dv;
    return args;
  }
  Tensor q, k, v, d_o, o, lse, dq, dk, dv;
};

// Adds forward and backward of a branch; `complete` fills in the arguments that only that branch
// has.
template <class Args, class BackwardArgs, class Complete>
void AddBranch(const NsaShape& s, const std::string& name, Branch branch,
               int64_t (*keys)(const NsaShape&), absl::Status (*forward)(const Exec&, const Args&),
               absl::Status (*backward)(const Exec&, const BackwardArgs&), Complete complete,
               KernelCode code, std::vector<Family>* out) {
  const double pairs = Pairs(s, branch);
  const BranchBytes bytes = BytesOf(s, keys(s));
  out->push_back(
      {name, ForwardFlops(s, pairs), bytes.forward, [=](const NsaShape& shape, Data* data) -> Call {
         const BranchTensors t(shape, keys(shape), data);
         auto args = t.Forward<Args>(shape);
         complete(shape, data, &args);
         return {[=] { return forward(data->exec(), args); }, {{"o", t.o}}};
       }});
  out->back().executed = ExecutedForward(s, branch, code);
  out->push_back({name + "_backward", BackwardFlops(s, pairs), bytes.backward,
                  [=](const NsaShape& shape, Data* data) -> Call {
                    const BranchTensors t(shape, keys(shape), data);
                    auto args = t.Forward<Args>(shape);
                    auto back = t.Backward<BackwardArgs>(shape);
                    complete(shape, data, &args);
                    complete(shape, data, &back);
                    const absl::Status status = forward(data->exec(), args);
                    return {[=] { return status.ok() ? backward(data->exec(), back) : status; },
                            {{"dq", t.dq}, {"dk", t.dk}, {"dv", t.dv}}};
                  }});
  out->back().executed = ExecutedBackward(s, branch, code);
}

int64_t AllKeys(const NsaShape& s) { return s.seq_len; }
int64_t CompressedKeys(const NsaShape& s) { return s.cmp_blocks(); }

void AddBranches(const NsaShape& s, KernelCode code, std::vector<Family>* out) {
  const auto nothing = [](const NsaShape&, Data*, auto*) {};
  AddBranch<BranchArgs, BranchBackwardArgs>(s, "window_attention", kWin, AllKeys, WindowAttention,
                                            WindowAttentionBackward, nothing, code, out);
  AddBranch<BranchArgs, BranchBackwardArgs>(s, "compressed_attention", kCmp, CompressedKeys,
                                            CompressedAttention, CompressedAttentionBackward,
                                            nothing, code, out);
  AddBranch<BranchArgs, BranchBackwardArgs>(
      s, "selected_attention", kSel, AllKeys, SelectedAttention, SelectedAttentionBackward,
      // Blocks chosen by random scores: neighbours share only the blocks that are always selected,
      // which is the slowest case for a tile of queries.
      [](const NsaShape& shape, Data* data, auto* args) {
        const Tensor blocks = data->Raw(shape.blocks_size(), DType::kI32);
        const Tensor scores =
            data->RandomF32(RowsOf(shape) * shape.n_kv_groups * shape.sel_blocks(), 9);
        (void)ChooseBlocks(data->exec(), {.shape = shape, .scores = scores, .blocks = blocks});
        args->blocks = blocks;
      },
      code, out);
  out->push_back(
      {"select_blocks", Pairs(s, kCmp) * 2 * s.d_k,
       2.0 * s.q_size() + 2.0 * s.cmp_k_size() + 4.0 * HeadRows(s) + 4.0 * s.blocks_size(),
       [](const NsaShape& shape, Data* data) -> Call {
         const BranchTensors t(shape, shape.cmp_blocks(), data);
         const Tensor blocks = data->Raw(shape.blocks_size(), DType::kI32);
         const absl::Status status =
             CompressedAttention(data->exec(), t.Forward<BranchArgs>(shape));
         const SelectBlocksArgs args{
             .shape = shape, .q = t.q, .k = t.k, .lse = t.lse, .blocks = blocks};
         return {[=] { return status.ok() ? SelectBlocks(data->exec(), args) : status; }, {}};
       }});
  out->back().executed = ExecutedSelection(s);
}

// GPU and CPU choose blocks by scores that differ by rounding, so a few rows attend to different
// blocks.
constexpr double kLayerBound = 0.1;

// The whole layer with all branches: forward only, or forward and backward.
Call MakeLayer(const NsaShape& shape, Data* data, bool backward) {
  NsaLayerConfig config{.shape = shape};
  if (data->exec().backend == Backend::kCuda) config.dtype = DType::kBf16;
  const int64_t hidden = GateHidden(shape.d_k);
  NsaLayerArgs args{
      .config = config,
      .params = {.gate = {data->Random(hidden * shape.d_k, 31, 0.1f),
                          data->Random(hidden, 32, 0.1f), data->Random(3 * hidden, 33, 0.1f),
                          data->Random(3, 34, 0.1f)}},
      .q = data->Random(shape.q_size(), 1, 2),
      .saved = data->Raw(NsaLayerSavedBytes(config), DType::kU8),
      .workspace = data->Raw(NsaLayerWorkspaceBytes(config), DType::kU8),
      .o = data->Out(shape.o_size()),
      .gate_stats = data->Raw(kGateStats, DType::kF32),
      .selection_stats = data->Raw(kSelectionStats, DType::kI64),
      .keys_read = data->Raw(kBranches, DType::kI64)};
  NsaLayerBackwardArgs back{.config = config,
                            .params = args.params,
                            .o = args.o,
                            .saved = args.saved,
                            .workspace = args.workspace};
  for (int c = 0; c < kBranches; ++c) {
    args.k[c] = data->Random(shape.k_size(), 11 + c, 2);
    args.v[c] = back.v[c] = data->Random(shape.v_size(), 21 + c);
  }
  if (!backward) return {[=] { return NsaLayer(data->exec_with_side(), args); }, {{"o", args.o}}};
  back.d_o = data->Random(shape.o_size(), 4);
  back.dq = data->Out(shape.q_size());
  for (int c = 0; c < kBranches; ++c) {
    back.dk[c] = data->Out(shape.k_size()), back.dv[c] = data->Out(shape.v_size());
  }
  back.grads.gate = {data->Zeros(hidden * shape.d_k, DType::kF32), data->Zeros(hidden, DType::kF32),
                     data->Zeros(3 * hidden, DType::kF32), data->Zeros(3, DType::kF32)};
  return {[=] {
            const absl::Status status = NsaLayer(data->exec_with_side(), args);
            return status.ok() ? NsaLayerBackward(data->exec_with_side(), back) : status;
          },
          {{"dq", back.dq}, {"dk", back.dk[kWin]}, {"dv", back.dv[kWin]}}};
}

void AddLayer(const NsaShape& s, std::vector<Family>* out) {
  double forward = Pairs(s, kCmp) * 2 * s.d_k, backward = 0;
  for (const Branch branch : {kCmp, kSel, kWin}) {
    forward += ForwardFlops(s, Pairs(s, branch));
    backward += BackwardFlops(s, Pairs(s, branch));
  }
  const double q = 2.0 * s.q_size(), o = 2.0 * s.o_size(), kv = 6.0 * (s.k_size() + s.v_size());
  out->push_back({"layer", forward, q + kv + o,
                  [](const NsaShape& shape, Data* data) { return MakeLayer(shape, data, false); },
                  kLayerBound});
  out->push_back({"layer_and_backward", forward + backward, 3 * (q + kv + o),
                  [](const NsaShape& shape, Data* data) { return MakeLayer(shape, data, true); },
                  kLayerBound});
}

void AddGate(const NsaShape& s, std::vector<Family>* out) {
  const auto make = [](bool backward) {
    return [backward](const NsaShape& shape, Data* data) -> Call {
      const int64_t hidden = GateHidden(shape.d_k), rows = RowsOf(shape) * shape.n_kv_groups;
      GateArgs args{
          .shape = shape,
          .q = data->Random(shape.q_size(), 1, 2),
          .params = {data->Random(hidden * shape.d_k, 31, 0.1f), data->Random(hidden, 32, 0.1f),
                     data->Random(3 * hidden, 33, 0.1f), data->Random(3, 34, 0.1f)},
          .gates = data->Raw(rows * 3, DType::kF32),
          .o = data->Out(shape.o_size()),
          .gate_stats = data->Raw(kGateStats, DType::kF32),
          .q_mean = data->Raw(shape.k_size(), DType::kF32)};
      GateBackwardArgs back{.shape = shape, .q_mean = args.q_mean, .params = args.params};
      for (int c = 0; c < kBranches; ++c) {
        args.o_branch[c] = back.o_branch[c] = data->Random(shape.o_size(), 5 + c);
      }
      if (!backward) return {[=] { return Gate(data->exec(), args); }, {{"o", args.o}}};
      for (int c = 0; c < kBranches; ++c) {
        if (data->exec().backend == Backend::kCuda) {
          back.lse[c] = data->RandomF32(HeadRows(shape), 15 + c, 5);
          back.stats[c] = data->Raw(2 * HeadRows(shape), DType::kF32);
        } else {
          back.d_o_branch[c] = data->Out(shape.o_size());
        }
      }
      back.gates = args.gates, back.d_o = data->Random(shape.o_size(), 4);
      back.dq_mean = data->Out(shape.k_size());
      back.grads = {data->Zeros(hidden * shape.d_k, DType::kF32), data->Zeros(hidden, DType::kF32),
                    data->Zeros(3 * hidden, DType::kF32), data->Zeros(3, DType::kF32)};
      const absl::Status status = Gate(data->exec(), args);
      return {[=] { return status.ok() ? GateBackward(data->exec(), back) : status; },
              {{"dq_mean", back.dq_mean}}};
    };
  };
  const double q = 2.0 * s.q_size(), o = 2.0 * s.o_size(), q_mean = 4.0 * s.k_size();
  out->push_back({"gate", 0, q + 4 * o + q_mean, make(false)});
  // Of each row and branch a log-sum-exp is read and two statistics are written.
  out->push_back({"gate_backward", 0, q_mean + 4 * o + 3 * 12.0 * HeadRows(s), make(true)});
}

void AddRows(const NsaShape& s, const ModelWidths& w, std::vector<Family>* out) {
  const double x = 2.0 * RowsOf(s) * w.dim;
  out->push_back({"rope_q", 0, 4.0 * s.q_size(), [](const NsaShape& shape, Data* data) -> Call {
                    const RopeArgs args{.batch = shape.batch,
                                        .seq_len = shape.seq_len,
                                        .heads = shape.n_heads,
                                        .head_dim = shape.d_k,
                                        .x = data->Random(shape.q_size(), 1),
                                        .y = data->Out(shape.q_size())};
                    return {[=] { return Rope(data->exec(), args); }, {{"y", args.y}}};
                  }});
  out->push_back({"compress_keys", 0, 2.0 * (s.k_size() + s.cmp_k_size()),
                  [](const NsaShape& shape, Data* data) -> Call {
                    const CompressArgs args{.shape = shape,
                                            .width = shape.d_k,
                                            .x = data->Random(shape.k_size(), 1),
                                            .y = data->Out(shape.cmp_k_size())};
                    return {[=] { return Compress(data->exec(), args); }, {{"y", args.y}}};
                  }});
  out->push_back({"rms_norm", 0, 2 * x, [w](const NsaShape& shape, Data* data) -> Call {
                    const int64_t rows = RowsOf(shape), size = rows * w.dim;
                    const RmsNormArgs args{rows,
                                           w.dim,
                                           data->Random(size, 1),
                                           data->Random(w.dim, 2),
                                           data->Out(size),
                                           data->Raw(rows, DType::kF32)};
                    return {[=] { return RmsNorm(data->exec(), args); }, {{"y", args.y}}};
                  }});
  out->push_back({"rms_norm_backward", 0, 5 * x, [w](const NsaShape& shape, Data* data) -> Call {
                    const int64_t rows = RowsOf(shape), size = rows * w.dim;
                    const RmsNormBackwardArgs args{rows,
                                                   w.dim,
                                                   data->Random(size, 1),
                                                   data->Random(size, 2),
                                                   data->Random(w.dim, 3),
                                                   data->RandomF32(rows, 4),
                                                   data->Random(size, 5),
                                                   data->Zeros(w.dim, DType::kF32),
                                                   data->Out(size)};
                    return {[=] { return RmsNormBackward(data->exec(), args); }, {{"y", args.y}}};
                  }});
  for (const Activation kind : {Activation::kSilu, Activation::kRelu2}) {
    const std::string name = kind == Activation::kSilu ? "silu" : "relu2";
    out->push_back(
        {name, 0, 16.0 * RowsOf(s) * w.dim, [w, kind](const NsaShape& shape, Data* data) -> Call {
           const int64_t size = 4 * RowsOf(shape) * w.dim;
           const ActivateArgs args{data->Random(size, 1, 3), data->Out(size), kind};
           return {[=] { return Activate(data->exec(), args); }, {{"y", args.y}}};
         }});
    out->push_back({name + "_backward", 0, 32.0 * RowsOf(s) * w.dim,
                    [w, kind](const NsaShape& shape, Data* data) -> Call {
                      const int64_t size = 4 * RowsOf(shape) * w.dim;
                      const ActivateBackwardArgs args{data->Random(size, 2),
                                                      data->Random(size, 1, 3), data->Out(size),
                                                      kind, data->Out(size)};
                      return {[=] { return ActivateBackward(data->exec(), args); },
                              {{"dx", args.dx}, {"y", args.y}}};
                    }});
  }
}

// Splits the wide matrix of projections into its parts and joins them again, with RoPE.
void AddProjections(const NsaShape& s, std::vector<Family>* out) {
  const auto make = [](bool backward, bool qk_norm) {
    return [=](const NsaShape& shape, Data* data) -> Call {
      NsaLayerConfig config{.shape = shape, .qk_norm = qk_norm};
      if (data->exec().backend == Backend::kCuda) config.dtype = DType::kBf16;
      const int64_t wide = RowsOf(shape) * ProjectionWidth(config);
      if (!backward) {
        SplitProjectionsArgs args{.config = config,
                                  .wide = data->Random(wide, 1),
                                  .q = data->Out(shape.q_size()),
                                  .q_rotated = data->Out(shape.q_size()),
                                  .q_rstd = data->Zeros(shape.q_size() / shape.d_k, DType::kF32)};
        for (int c = 0; c < kBranches; ++c) {
          args.k[c] = data->Out(shape.k_size()), args.v[c] = data->Out(shape.v_size());
          args.k_rstd[c] = data->Zeros(shape.k_size() / shape.d_k, DType::kF32);
        }
        return {[=] { return SplitProjections(data->exec(), args); },
                {{"q_rotated", args.q_rotated}, {"k", args.k[kWin]}, {"v", args.v[kCmp]}}};
      }
      // On the CPU this overwrites dq and dk, so it may be called only once; the check does so.
      JoinProjectionsArgs args{.config = config,
                               .dq = data->Random(shape.q_size(), 1),
                               .dq_mean = data->Random(shape.k_size(), 2),
                               .wide = data->Out(wide),
                               .q_rotated = data->Random(shape.q_size(), 3),
                               .q_rstd = data->RandomF32(shape.q_size() / shape.d_k, 4)};
      for (int c = 0; c < kBranches; ++c) {
        args.dk[c] = data->Random(shape.k_size(), 11 + c);
        args.k_rotated[c] = data->Random(shape.k_size(), 31 + c);
        args.k_rstd[c] = data->RandomF32(shape.k_size() / shape.d_k, 41 + c);
        args.dv[c] = data->Random(shape.v_size(), 21 + c);
      }
      return {[=] { return JoinProjections(data->exec(), args); }, {{"wide", args.wide}}};
    };
  };
  const double q = 2.0 * s.q_size(), wide = q + 6.0 * (s.k_size() + s.v_size());
  const double keys = q + 6.0 * s.k_size();  // read by joining with qk_norm
  out->push_back({"split_projections", 0, 2 * wide + q, make(false, false)});
  out->push_back({"split_qk_norm", 0, 2 * wide + q, make(false, true)});
  out->push_back({"join_qk_norm", 0, 2 * wide + 2.0 * s.k_size() + keys, make(true, true)});
}

void AddEnds(const NsaShape& s, const ModelWidths& w, std::vector<Family>* out) {
  const double rows = static_cast<double>(RowsOf(s));
  out->push_back({"embedding_backward", 0, 2 * rows * w.dim + 8.0 * w.vocab * w.dim,
                  [w](const NsaShape& shape, Data* data) -> Call {
                    const int64_t n = RowsOf(shape);
                    const EmbeddingBackwardArgs args{
                        n,
                        w.vocab,
                        w.dim,
                        data->RandomInts(n, 1, static_cast<int32_t>(w.vocab)),
                        data->Random(n * w.dim, 2),
                        data->Zeros(w.vocab * w.dim, DType::kF32)};
                    return {[=] { return EmbeddingBackward(data->exec(), args); }, {}};
                  }});
  out->push_back(
      {"cross_entropy", 0, 4 * rows * w.vocab, [w](const NsaShape& shape, Data* data) -> Call {
         const int64_t n = RowsOf(shape);
         const CrossEntropyArgs args{n,
                                     w.vocab,
                                     data->Random(n * w.vocab, 1, 5),
                                     data->RandomInts(n, 2, static_cast<int32_t>(w.vocab)),
                                     data->Raw(n, DType::kF32),
                                     data->Raw(1, DType::kF32),
                                     1,
                                     data->Out(n * w.vocab)};
         return {[=] { return CrossEntropy(data->exec(), args); },
                 {{"row_loss", args.row_loss}, {"dlogits", args.dlogits}}};
       }});
}

// A linear layer y = x Wᵀ, and the gradients of its input and its weight.
void AddLinear(const NsaShape& s, const std::string& name, int64_t in, int64_t out_width,
               std::vector<Family>* out) {
  const double rows = static_cast<double>(RowsOf(s)), flops = 2 * rows * in * out_width;
  const double bytes = 2 * (rows * in + rows * out_width + 1.0 * in * out_width);
  const auto make = [=](int kind) {
    return [=](const NsaShape& shape, Data* data) -> Call {
      const int64_t n = RowsOf(shape);
      MatmulArgs args;
      if (kind == 0) {
        args = {.m = n, .n = out_width, .k = in, .transpose_b = true};
      } else if (kind == 1) {
        args = {.m = n, .n = in, .k = out_width};
      } else {
        args = {.m = out_width, .n = in, .k = n, .transpose_a = true, .accumulate = true};
      }
      args.a = data->Random(args.m * args.k, 1), args.b = data->Random(args.k * args.n, 2);
      args.c = kind == 2 ? data->Zeros(args.m * args.n, DType::kF32) : data->Out(args.m * args.n);
      return {[=] { return Matmul(data->exec(), args); }, {{"c", args.c}}};
    };
  };
  out->push_back({name, flops, bytes, make(0)});
  out->push_back({name + "_dx", flops, bytes, make(1)});
  out->push_back({name + "_dw", flops, bytes, make(2)});
}

}  // namespace

std::vector<Family> Families(const NsaShape& shape, const ModelWidths& widths, KernelCode code) {
  std::vector<Family> out;
  AddLayer(shape, &out);
  AddBranches(shape, code, &out);
  AddGate(shape, &out);
  AddRows(shape, widths, &out);
  AddProjections(shape, &out);
  AddEnds(shape, widths, &out);
  AddOptimizers(widths, &out);
  const int64_t q = int64_t{shape.n_heads} * shape.d_k;
  AddLinear(shape, "linear_qkv", widths.dim,
            q + int64_t{3} * shape.n_kv_groups * (shape.d_k + shape.d_v), &out);
  AddLinear(shape, "linear_out", int64_t{shape.n_heads} * shape.d_v, widths.dim, &out);
  AddLinear(shape, "linear_up", widths.dim, 4 * widths.dim, &out);
  AddLinear(shape, "linear_down", 4 * widths.dim, widths.dim, &out);
  AddLinear(shape, "linear_head", widths.dim, widths.vocab, &out);
  return out;
}

}  // namespace nsa::bench
