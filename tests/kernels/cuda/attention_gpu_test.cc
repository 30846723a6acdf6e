// The whole attention layer on the GPU against the CPU implementation: every subset of branches,
// both gates and compressions, documents, odd and extreme lengths. Memory starts as NaN, and each
// case runs twice to check for equal bits.
//
// In a step backward writes all gradients side by side, where the projections read them: the same
// bits. The second run of each case does so.
//
// CPU and GPU choose blocks from scores that differ by rounding. The test therefore first checks
// the GPU's choice against the CPU's scores, then recomputes the CPU's layer with the GPU's choice.
#include <gmock/gmock.h>

#include "kernels/cuda/side.h"
#include "kernels/nsa/branch/compressed_attention.h"
#include "kernels/nsa/layer/nsa_layer.h"
#include "kernels/nsa/layer/projections.h"
#include "kernels/nsa/select/select_blocks.h"
#include "tests/kernels/cuda/device.h"
#include "tests/kernels/layer.h"

namespace nsa::testing {
namespace {

// A branch output has the rounding of rotated q and k (error of a score), of weights and of itself;
// the combination of the branches is rounded once more.
constexpr double kLayerOutput = 1.5e-2;
// Gradients have the rounding of the branch outputs (in δ), of weights, of their gradients, of
// three sums into dq and of the rotation back.
constexpr double kLayerGradient = 2.5e-2;

void RoundLayer(Layer* layer) {
  auto round = [](std::vector<float>* v) { *v = RoundToBf16(*v); };
  round(&layer->q);
  for (int c = 0; c < kBranches; ++c) round(&layer->k[c]), round(&layer->v[c]);
  for (auto* v : {&layer->gate.fc1_w, &layer->gate.fc1_b, &layer->gate.fc2_w, &layer->gate.fc2_b})
    round(v);
  for (PhiValues* phi : {&layer->phi_k, &layer->phi_v})
    for (auto* v : {&phi->pe, &phi->w1, &phi->b1, &phi->w2, &phi->b2}) round(v);
}

// A layer's inputs on the device.
struct GpuLayer {
  explicit GpuLayer(const Layer& layer)
      : q(ToDevice(layer.q)), doc_start(ToDevice(layer.doc_start)) {
    for (int c = 0; c < kBranches; ++c) {
      k.push_back(ToDevice(layer.k[c]));
      v.push_back(ToDevice(layer.v[c]));
    }
    for (const auto* values : Parameters(layer)) params.push_back(ToDevice(*values));
  }
  static std::vector<const std::vector<float>*> Parameters(const Layer& l) {
    return {&l.gate.fc1_w, &l.gate.fc1_b, &l.gate.fc2_w, &l.gate.fc2_b, &l.phi_k.pe,
            &l.phi_k.w1,   &l.phi_k.b1,   &l.phi_k.w2,   &l.phi_k.b2,   &l.phi_v.pe,
            &l.phi_v.w1,   &l.phi_v.b1,   &l.phi_v.w2,   &l.phi_v.b2};
  }
  NsaLayerParams attention_params() const {
    const auto& p = params;
    return {.gate = {p[0], p[1], p[2], p[3]},
            .phi_k = {p[4], p[5], p[6], p[7], p[8]},
            .phi_v = {p[9], p[10], p[11], p[12], p[13]}};
  }
  DeviceTensor q, doc_start;
  std::vector<DeviceTensor> k, v, params;
};

// What one forward and backward on the GPU leaves behind.
struct GpuResult {
  std::vector<float> o, gates, gate_stats, dq;
  std::array<std::vector<float>, kBranches> lse, dk, dv;
  std::vector<std::vector<float>> grads;
  std::vector<int32_t> blocks;
  std::vector<int64_t> keys_read, selection;
};

// What the forward saved in device memory.
void ReadSaved(const NsaLayerConfig& config, const DeviceTensor& saved, GpuResult* out) {
  const std::vector<uint8_t> bytes = saved.Bytes();
  const NsaLayerSaved at = LayoutSaved(config, saved);
  const auto copy = [&]<class T>(const Tensor& tensor, std::vector<T>* to) {
    to->resize(tensor.size);
    if (tensor.size == 0) return;
    const int64_t offset =
        static_cast<const uint8_t*>(tensor.data) - static_cast<const uint8_t*>(saved.tensor().data);
    std::memcpy(to->data(), bytes.data() + offset, tensor.size * sizeof(T));
  };
  copy(at.gates, &out->gates);
  copy(at.blocks, &out->blocks);
  for (int c = 0; c < kBranches; ++c) copy(at.lse[c], &out->lse[c]);
}

// Columns [begin, begin + width) of a matrix whose rows have `of` columns.
std::vector<float> Columns(const std::vector<float>& matrix, int64_t of, int64_t begin,
                           int64_t width) {
  std::vector<float> out;
  for (size_t row = 0; row < matrix.size(); row += of) {
    const auto first = matrix.begin() + static_cast<int64_t>(row) + begin;
    out.insert(out.end(), first, first + width);
  }
  return out;
}

// The gradients of the layer's inputs from that of the projections.
void ReadWide(const NsaLayerConfig& config, const std::vector<float>& wide, GpuResult* out) {
  const NsaShape& s = config.shape;
  int64_t begin = 0;
  const auto next = [&](int64_t heads, int64_t width) {
    begin += heads * width;
    return Columns(wide, ProjectionWidth(config), begin - heads * width, heads * width);
  };
  out->dq = next(s.n_heads, s.d_k);
  for (const Branch branch : kProjectionOrder) {
    if (!config.has(branch)) continue;
    out->dk[branch] = next(s.n_kv_groups, s.d_k);
    out->dv[branch] = next(s.n_kv_groups, s.d_v);
  }
}

// With `side_by_side` backward writes the gradients of the inputs into one matrix.
GpuResult RunOnGpu(const Layer& layer, const GpuLayer& in, const DeviceTensor& d_o,
                   cuda::Side* side, bool side_by_side) {
  NsaLayerConfig config = layer.config;
  config.dtype = DType::kBf16;
  const NsaShape& s = config.shape;
  const DeviceTensor saved(NsaLayerSavedBytes(config), DType::kU8),
      workspace(NsaLayerWorkspaceBytes(config), DType::kU8), o(s.o_size(), DType::kBf16),
      gate_stats(kGateStats, DType::kF32), selection(kSelectionStats, DType::kI64),
      keys_read(kBranches, DType::kI64), dq(s.q_size(), DType::kBf16);
  NsaLayerArgs args{.config = config,
                    .params = in.attention_params(),
                    .q = in.q,
                    .doc_start = in.doc_start,
                    .saved = saved,
                    .workspace = workspace,
                    .o = o,
                    .keys_read = keys_read};
  if (config.has_gate()) args.gate_stats = gate_stats;
  if (config.has(kSel)) args.selection_stats = selection;
  NsaLayerBackwardArgs back{.config = config,
                            .params = args.params,
                            .doc_start = in.doc_start,
                            .o = o,
                            .saved = saved,
                            .workspace = workspace,
                            .d_o = d_o,
                            .dq = dq};
  const int64_t tokens = int64_t{1} * s.batch * s.seq_len;
  const DeviceTensor wide(side_by_side ? tokens * ProjectionWidth(config) : 0, DType::kBf16);
  if (side_by_side) back.wide = wide, back.dq = {};
  std::vector<DeviceTensor> dk, dv, grads;
  for (int c = 0; c < kBranches; ++c) {
    dk.emplace_back(config.branches[c] ? s.k_size() : 0, DType::kBf16);
    dv.emplace_back(config.branches[c] ? s.v_size() : 0, DType::kBf16);
    if (!config.branches[c]) continue;
    args.k[c] = in.k[c], args.v[c] = back.v[c] = in.v[c];
    if (!side_by_side) back.dk[c] = dk[c], back.dv[c] = dv[c];
  }
  for (const auto* values : GpuLayer::Parameters(layer))
    grads.push_back(ToDeviceF32(std::vector<float>(values->size(), 0.0f)));
  back.grads = {.gate = {grads[0], grads[1], grads[2], grads[3]},
                .phi_k = {grads[4], grads[5], grads[6], grads[7], grads[8]},
                .phi_v = {grads[9], grads[10], grads[11], grads[12], grads[13]}};
  Exec exec = Gpu::Get().exec();
  exec.side = side;
  exec.workspace_bytes = PlanScratch(config).bytes;  // exactly what is planned must be enough
  absl::Status status = NsaLayer(exec, args);
  EXPECT_TRUE(status.ok()) << status;
  status = NsaLayerBackward(exec, back);
  EXPECT_TRUE(status.ok()) << status;

  GpuResult out{.o = o.Floats(), .dq = dq.Floats(), .keys_read = keys_read.Raw<int64_t>()};
  ReadSaved(config, saved, &out);
  if (config.has_gate()) out.gate_stats = gate_stats.Floats();
  if (config.has(kSel)) out.selection = selection.Raw<int64_t>();
  for (int c = 0; c < kBranches; ++c) {
    out.dk[c] = dk[c].Floats(), out.dv[c] = dv[c].Floats();
  }
  if (side_by_side) ReadWide(config, wide.Floats(), &out);
  for (const DeviceTensor& grad : grads) out.grads.push_back(grad.Floats());
  return out;
}

// Checks that the choice contains the forced blocks and that, by the CPU's scores, no block left
// out is better than a chosen one by more than rounding.
void JudgeChoice(const Layer& layer, const ForwardOut& cpu, const std::vector<int32_t>& blocks) {
  const NsaShape& s = layer.config.shape;
  const int64_t rows = int64_t{1} * s.batch * s.seq_len * s.n_kv_groups;
  std::vector<float> scores(rows * s.sel_blocks());
  std::vector<int32_t> own(s.blocks_size());
  ASSERT_TRUE(SelectBlocks({}, {.shape = s,
                                .q = cpu.saved.q,
                                .k = cpu.saved.k_cmp,
                                .doc_start = Span(layer.doc_start),
                                .blocks = Span(own),
                                .scores = Span(scores)})
                  .ok());
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t* got = &blocks[row * s.n_sel];
    const int32_t* want = &own[row * s.n_sel];
    float taken = INFINITY,
          left = -INFINITY;  // worst chosen, best left out, where CPU and GPU differ
    for (int i = 0; i < s.n_sel; ++i) {
      if (std::find(want, want + s.n_sel, got[i]) == want + s.n_sel) {
        ASSERT_GE(got[i], 0) << "row " << row;
        taken = std::min(taken, scores[row * s.sel_blocks() + got[i]]);
      }
      if (std::find(got, got + s.n_sel, want[i]) == got + s.n_sel) {
        ASSERT_GE(want[i], 0) << "row " << row;
        left = std::max(left, scores[row * s.sel_blocks() + want[i]]);
      }
    }
    // A score is a sum over h heads of probabilities whose logits have errors of a few 2^-9.
    ASSERT_FALSE(left > taken * 1.05f + 1e-4f)
        << "row " << row << ": " << left << " left, " << taken << " taken";
  }
}

// Writes the GPU's choice into the CPU's saved tensors and recomputes what depends on it.
void TakeChoice(const Layer& layer, const std::vector<int32_t>& blocks, ForwardOut* cpu) {
  const NsaLayerConfig& config = layer.config;
  std::copy(blocks.begin(), blocks.end(), static_cast<int32_t*>(cpu->saved.blocks.data));
  const Tensor o = config.has_gate() ? cpu->saved.o[kSel] : Tensor(Span(cpu->o));
  ASSERT_TRUE(SelectedAttention({}, {.shape = config.shape,
                                     .q = cpu->saved.q,
                                     .k = cpu->saved.k[kSel],
                                     .v = Span(layer.v[kSel]),
                                     .blocks = cpu->saved.blocks,
                                     .doc_start = Span(layer.doc_start),
                                     .o = o,
                                     .lse = cpu->saved.lse[kSel]})
                  .ok());
  if (!config.has_gate()) return;
  ASSERT_TRUE(Gate({}, {.shape = config.shape,
                        .kind = config.gate,
                        .q = Span(layer.q),
                        .params = ParamsOf(layer.gate),
                        .o_branch = {cpu->saved.o[kCmp], cpu->saved.o[kSel], cpu->saved.o[kWin]},
                        .gates = cpu->saved.gates,
                        .o = Span(cpu->o)})
                  .ok());
}

std::vector<float> FloatsOf(const Tensor& tensor) {
  const auto values = tensor.as<float>();
  return {values.begin(), values.end()};
}

void CompareForward(const Layer& layer, const ForwardOut& cpu, const GpuResult& gpu) {
  const NsaLayerConfig& config = layer.config;
  EXPECT_TRUE(Near("o", gpu.o, cpu.o, kLayerOutput, 1e-5));
  for (int c = 0; c < kBranches; ++c) {
    EXPECT_EQ(gpu.keys_read[c], cpu.keys_read[c]) << c;
    if (!config.branches[c]) continue;
    EXPECT_TRUE(Near("lse", gpu.lse[c], FloatsOf(cpu.saved.lse[c]), 5e-3, 5e-3));
  }
  if (config.has(kSel)) {
    EXPECT_THAT(gpu.selection, ::testing::ElementsAreArray(cpu.selection));
  }
  if (!config.has_gate()) return;
  EXPECT_TRUE(Near("gates", gpu.gates, FloatsOf(cpu.saved.gates), 1e-5));
  EXPECT_TRUE(Near("gate_stats", gpu.gate_stats, {cpu.gate_stats.begin(), cpu.gate_stats.end()},
                   1e-4, 1e-5));
}

double Norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float x : values) sum += static_cast<double>(x) * x;
  return std::sqrt(sum);
}

// d_o of a branch: gate times d_o, for rows of h·dv elements.
std::vector<float> BranchGradient(const Layer& layer, const ForwardOut& cpu,
                                  const std::vector<float>& d_o, Branch branch) {
  if (!layer.config.has_gate()) return d_o;
  int slot = 0;
  for (int c = 0; c < branch; ++c) slot += layer.config.branches[c];
  const NsaShape& s = layer.config.shape;
  const auto gates = cpu.saved.gates.as<float>();
  std::vector<float> out = d_o;
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] *= gates[i / (s.heads_per_group() * s.d_v) * layer.config.n_branches() + slot];
  }
  return out;
}

// Norm of the terms in the gradient of φ's last bias for keys: the gradients of the compressed
// keys. Their sum is 0, since a constant added to all keys does not change a softmax.
double KeyTermsNorm(const Layer& layer, const ForwardOut& cpu, const std::vector<float>& d_o) {
  const NsaShape& s = layer.config.shape;
  if (!layer.config.has(kCmp) || s.cmp_blocks() == 0) return 0;
  std::vector<float> dq(s.q_size()), dk(s.cmp_k_size()), dv(s.cmp_v_size());
  const std::vector<float> d_branch = BranchGradient(layer, cpu, d_o, kCmp);
  EXPECT_TRUE(
      CompressedAttentionBackward({}, {.shape = s,
                                       .q = cpu.saved.q,
                                       .k = cpu.saved.k_cmp,
                                       .v = cpu.saved.v_cmp,
                                       .doc_start = Span(layer.doc_start),
                                       .o = layer.config.has_gate() ? ConstTensor(cpu.saved.o[kCmp])
                                                                    : ConstTensor(Span(cpu.o)),
                                       .lse = cpu.saved.lse[kCmp],
                                       .d_o = Span(d_branch),
                                       .dq = Span(dq),
                                       .dk = Span(dk),
                                       .dv = Span(dv)})
          .ok());
  return Norm(dk);
}

// Norm of the terms in the gradient of the gate's last bias: Σ_c d_o·o per row, for all branches.
double GateTermsNorm(const Layer& layer, const ForwardOut& cpu, const std::vector<float>& d_o) {
  if (!layer.config.has_gate()) return 0;
  const NsaShape& s = layer.config.shape;
  const int64_t width = int64_t{1} * s.heads_per_group() * s.d_v;
  double sum = 0;
  for (int c = 0; c < kBranches; ++c) {
    if (!layer.config.branches[c]) continue;
    const auto o = cpu.saved.o[c].as<float>();
    for (int64_t row = 0; row < s.o_size() / width; ++row) {
      double dot = 0;
      for (int64_t i = row * width; i < (row + 1) * width; ++i) dot += o[i] * d_o[i];
      sum += dot * dot;
    }
  }
  return std::sqrt(sum);
}

void CompareBackward(const Layer& layer, const ForwardOut& forward, const std::vector<float>& d_o,
                     const BackwardOut& cpu, const GpuResult& gpu) {
  EXPECT_TRUE(Near("dq", gpu.dq, cpu.dq, kLayerGradient, 1e-4));
  for (int c = 0; c < kBranches; ++c) {
    if (!layer.config.branches[c]) continue;
    EXPECT_TRUE(Near("dk", gpu.dk[c], cpu.dk[c], kLayerGradient, 1e-4)) << c;
    EXPECT_TRUE(Near("dv", gpu.dv[c], cpu.dv[c], kLayerGradient, 1e-4)) << c;
  }
  // Where a sum cancels, the rounding of its terms remains: a random walk over the terms.
  const double key_floor = kLayerGradient * KeyTermsNorm(layer, forward, d_o) + 1e-6,
               gate_floor = kLayerGradient * GateTermsNorm(layer, forward, d_o) + 1e-6;
  // Those of the first bias are the second's times a weight and the slope of the sigmoid.
  float weight = 0;
  for (const float value : layer.gate.fc2_w) weight = std::max(weight, std::abs(value));
  Layer grads{.config = layer.config, .gate = cpu.gate, .phi_k = cpu.phi_k, .phi_v = cpu.phi_v};
  const auto want = GpuLayer::Parameters(grads);
  for (size_t i = 0; i < want.size(); ++i) {
    const double floor = want[i] == &grads.phi_k.b2     ? key_floor
                         : want[i] == &grads.gate.fc2_b ? gate_floor
                         : want[i] == &grads.gate.fc1_b ? gate_floor * weight / 4
                                                        : 1e-3;
    EXPECT_TRUE(Near("parameter gradient", gpu.grads[i], *want[i], kLayerGradient, floor)) << i;
  }
}

void CompareLayer(Layer layer) {
  SCOPED_TRACE(layer.config.shape.ToString());
  RoundLayer(&layer);
  const std::vector<float> d_o = RoundToBf16(Random(layer.config.shape.o_size(), 99));
  const GpuLayer in(layer);
  const DeviceTensor d_o_gpu = ToDevice(d_o);
  const GpuResult gpu = RunOnGpu(layer, in, d_o_gpu, nullptr, false);
  // The branches run concurrently on a side stream must give the same bits.
  const auto side = cuda::Side::Create();
  ASSERT_TRUE(side.ok()) << side.status();
  const GpuResult again = RunOnGpu(layer, in, d_o_gpu, side->get(), !layer.config.qk_norm);
  ForwardOut cpu = Forward(layer);
  if (layer.config.has(kSel)) {
    JudgeChoice(layer, cpu, gpu.blocks);
    TakeChoice(layer, gpu.blocks, &cpu);
  }
  CompareForward(layer, cpu, gpu);
  CompareBackward(layer, cpu, d_o, Backward(layer, cpu, d_o), gpu);
  EXPECT_TRUE(Identical("o again", again.o, gpu.o));
  EXPECT_TRUE(Identical("blocks again", again.blocks, gpu.blocks));
  EXPECT_TRUE(Identical("dq again", again.dq, gpu.dq));
  for (int c = 0; c < kBranches; ++c) {
    EXPECT_TRUE(Identical("dk again", again.dk[c], gpu.dk[c]));
    EXPECT_TRUE(Identical("dv again", again.dv[c], gpu.dv[c]));
  }
  for (size_t i = 0; i < gpu.grads.size(); ++i)
    EXPECT_TRUE(Identical("parameter gradient again", again.grads[i], gpu.grads[i]));
}

class AttentionOnGpu : public GpuTestWith<Case> {};

// The branches whose bit is set in `subset`.
void CompareSubset(const NsaShape& shape, int subset) {
  NsaLayerConfig config{.shape = shape};
  config.branches = {(subset & 1) != 0, (subset & 2) != 0, (subset & 4) != 0};
  config.phi = subset % 2 == 1 ? Phi::kMlp : Phi::kAvg;
  config.gate = subset == 7 ? GateKind::kSoftmax : GateKind::kSigmoid;
  SCOPED_TRACE(::testing::Message() << "subset " << subset);
  CompareLayer(RandomLayer(config, 7 * subset));
}

TEST_P(AttentionOnGpu, EqualsTheCpuTruthForEverySubsetOfBranches) {
  for (int subset = 1; subset < 8; ++subset) CompareSubset(GetParam().shape, subset);
}

TEST_P(AttentionOnGpu, EqualsTheCpuTruthWithDocuments) {
  NsaLayerConfig config{.shape = GetParam().shape};
  Layer layer = RandomLayer(config, 3);
  layer.doc_start = Documents(config.shape, {3, 11, 12, 40, 500});
  CompareLayer(layer);
}

TEST_P(AttentionOnGpu, EqualsTheCpuTruthWithScaledPositions) {
  NsaLayerConfig config{.shape = GetParam().shape, .rope_base = 500000, .rope_scale = 4};
  CompareLayer(RandomLayer(config, 5));
}

TEST_P(AttentionOnGpu, EqualsTheCpuTruthWithStretchedFrequencies) {
  using Kind = RopeScaling::Kind;
  for (const RopeScaling& scaling :
       {RopeScaling{.kind = Kind::kLlama3, .factor = 8, .original = 64, .low = 1, .high = 4},
        RopeScaling{.kind = Kind::kYarn, .factor = 4, .original = 300, .low = 1, .high = 32}}) {
    SCOPED_TRACE(static_cast<int>(scaling.kind));
    CompareLayer(RandomLayer({.shape = GetParam().shape, .rope_scaling = scaling}, 6));
  }
}

TEST_P(AttentionOnGpu, EqualsTheCpuTruthWithQkNorm) {
  for (const int subset : {2, 4, 5, 7}) {
    NsaLayerConfig config{.shape = GetParam().shape};
    config.branches = {(subset & 1) != 0, (subset & 2) != 0, (subset & 4) != 0};
    config.phi = subset == 5 ? Phi::kMlp : Phi::kAvg;
    config.qk_norm = true;
    if (subset == 5) config.norm_eps = 0.5f;  // not small beside the squares of a head
    SCOPED_TRACE(::testing::Message() << "subset " << subset);
    Layer layer = RandomLayer(config, 60 + subset);
    if (subset == 7) layer.doc_start = Documents(config.shape, {3, 11, 12, 40, 500});
    CompareLayer(layer);
  }
}

// A gate that underflows to 0 takes a branch out of the gradients, without a NaN.
TEST_P(AttentionOnGpu, EqualsTheCpuTruthWithAGateOfZero) {
  for (int closed = 0; closed < kBranches; ++closed) {
    SCOPED_TRACE(::testing::Message() << "closed " << closed);
    NsaLayerConfig config{.shape = GetParam().shape};
    config.gate = closed == kSel ? GateKind::kSigmoid : GateKind::kSoftmax;
    Layer layer = RandomLayer(config, 9);
    layer.gate.fc2_b[closed] = -300;
    CompareLayer(layer);
  }
}

std::vector<Case> Shapes() {
  std::vector<Case> cases = SmallCases();
  cases.push_back({"m7c ragged", {1, 1111, 12, 2, 64, 64, 32, 16, 64, 6, 200}});
  cases.push_back(
      {"wide heads, widths of the paper", {1, 777, 32, 2, 192, 128, 32, 16, 64, 6, 200}});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionOnGpu, ::testing::ValuesIn(Shapes()), CaseName());

// The selected branch by key block: with heads of 64 dq, dk and dv come from one pass.
class ByKeyOnGpu : public GpuTestWith<Case> {};

TEST_P(ByKeyOnGpu, EqualsTheCpuTruthForEverySubsetWithTheSelectedBranch) {
  for (const int subset : {2, 3, 6, 7}) CompareSubset(GetParam().shape, subset);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, ByKeyOnGpu,
    ::testing::Values(Case{"m7c by key", {2, 2017, 12, 2, 64, 64, 32, 16, 64, 4, 200}},
                      Case{"paper by key", {1, 2017, 8, 2, 192, 128, 32, 16, 64, 4, 200}}),
    CaseName());

}  // namespace
}  // namespace nsa::testing
