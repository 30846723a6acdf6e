#include "common/estimate/estimate.h"

#include <algorithm>
#include <map>

#include "common/estimate/devices.h"
#include "common/estimate/layers.h"
#include "common/estimate/memory/memory.h"
#include "common/estimate/model_options.h"
#include "common/estimate/muon_plan.h"
#include "common/estimate/passes.h"
#include "common/estimate/shares.h"
#include "common/estimate/sizes.h"
#include "common/nsa/visibility.h"

namespace nsa {
namespace {

// Parameters of φ mlp for keys or values of this width (kernels/nsa/compress/compress.h): a
// position embedding and two layers.
int64_t PhiParameters(int64_t l, int64_t width) {
  return l * width + width * l * width + width + width * width + width;
}

// Parameters of the gate's two layers (kernels/nsa/gate/gate.h). A single branch has no gate.
int64_t GateParameters(int64_t d_k, int64_t branches) {
  if (branches < 2) return 0;
  const int64_t hidden = d_k / 2;
  return hidden * d_k + hidden + branches * hidden + branches;
}

// Of a block: the MLP with its norm ...
int64_t MlpParameters(const Sizes& s) { return s.mlp_matrices() + s.dim; }

// ... and the attention with its norm.
int64_t AttentionParameters(const v1::JobSpec& spec, const Sizes& s) {
  int64_t attention = s.attention_matrices() + s.dim;
  attention += GateParameters(spec.model().d_k(), s.n_branches);
  if (spec.model().qkv_bias()) attention += s.q + s.n_branches * (s.k + s.v);
  if (spec.model().qk_norm_weights()) attention += 2 * int64_t{spec.model().d_k()};
  if (!s.phi_mlp) return attention;
  return attention + PhiParameters(spec.nsa().l(), spec.model().d_k()) +
         PhiParameters(spec.nsa().l(), spec.model().d_v());
}

// The final norm, and the head unless the embedding is the head.
int64_t HeadParameters(const v1::JobSpec& spec, const Sizes& s) {
  return s.dim + (spec.model().tie_embeddings() ? 0 : s.vocab * s.dim);
}

// Operations of a layer's attention per token, forward: two per key for each of a head's dk and dv
// columns, and those of φ. `keys` are the keys that a query reads in each branch with nsa.w; in a
// full layer a query reads its position + 1.
double AttentionFlops(const v1::JobSpec& spec, const Sizes& s, std::array<double, kBranches> keys) {
  if (s.full) keys[kWin] = (spec.train().seq_len() + 1) / 2.0;
  double visited = 0;
  for (int c = 0; c < kBranches; ++c) {
    if (s.branches[c]) visited += keys[c];
  }
  const double attention = 2.0 * visited * (s.q + s.o);
  if (!s.branches[kCmp]) return attention;
  const NsaShape shape = ShapeOf(spec);
  const double blocks = static_cast<double>(shape.cmp_blocks()) / shape.seq_len;
  const double width =
      1.0 * spec.model().d_k() * spec.model().d_k() + 1.0 * spec.model().d_v() * spec.model().d_v();
  return attention + (s.phi_mlp ? 2.0 * blocks * spec.model().n_kv_groups() * (shape.l + 1) * width
                                : blocks * shape.l * (s.k + s.v));
}

// Operations per token, forward and backward: those of the weights and those of attention.
struct StepFlops {
  double weights = 0, attention = 0;
};

StepFlops StepFlopsOf(const v1::JobSpec& spec) {
  const std::vector<LayerKind> kinds = KindsOf(spec);
  const std::array<double, kBranches> keys = MeanKeysRead(ShapeOf(spec));
  int64_t weights = kinds[0].sizes.vocab * kinds[0].sizes.dim;
  double attention = 0;
  for (const auto& [s, layers] : kinds) {
    weights += layers * s.block_matrices();
    attention += static_cast<double>(layers) * AttentionFlops(spec, s, keys);
  }
  // Forward: two operations per weight. Backward takes twice the forward.
  return {3.0 * 2.0 * static_cast<double>(weights), 3.0 * attention};
}

// Operations of Muon in a step: five iterations of three products. Every rank does all of them,
// unless each has its share of the matrices.
double MuonFlops(const std::map<MuonShape, int64_t>& matrices) {
  double flops = 0;
  for (const auto& [shape, count] : matrices) {
    const auto p = static_cast<double>(shape.p), q = static_cast<double>(shape.q);
    flops += 5 * static_cast<double>(count) * (4 * p * p * q + 2 * p * p * p);
  }
  return flops;
}

// Tokens per pass that reach half of the shares of StepSharesOf(): with them the production job of
// 8,192 tokens a pass is 479,000 tok/s on an H100 (478,900 to 480,700 measured 2026-11-27).
constexpr double kHalfSpeedTokens = 1640;

// The share of matrix_flops that Muon reaches. Measured 2026-11-25 on one H100 with m7c: 3.15 ms
// more than AdamW for 1.32 TFLOP (nsa-bench step).
constexpr double kMuonShare = 0.53;

// Latency of a step per layer and pass; estimate.h says how it was measured.
constexpr double kLaunchSeconds = 8e-3 / 24;

// FLOP rate of one core in fp32. The whole demo job (500 steps, 3.02 TFLOP) took 43.7 s of
// processor time on a 2.6 GHz Xeon with AVX-512 on 2026-11-20, which is 69 GFLOP/s. The constant is
// lower because threads do not scale perfectly and many machines have only AVX2.
constexpr double kCpuCoreFlops = 40e9;

}  // namespace

NsaShape ShapeOf(const v1::JobSpec& spec) {
  NsaShape shape;
  shape.batch = PassesOf(spec).sequences;
  shape.seq_len = spec.train().seq_len();
  shape.n_heads = spec.model().n_heads();
  shape.n_kv_groups = spec.model().n_kv_groups();
  shape.d_k = spec.model().d_k();
  shape.d_v = spec.model().d_v();
  shape.l = spec.nsa().l();
  shape.d = spec.nsa().d();
  shape.l_sel = spec.nsa().l_sel();
  shape.n_sel = spec.nsa().n_sel();
  shape.window = spec.nsa().w();
  return shape;
}

int32_t VocabOf(const v1::JobSpec& spec) {
  if (spec.model().vocab() != 0) return spec.model().vocab();
  if (spec.data().tokenizer() == v1::TOKENIZER_BPE) return 0;
  return spec.data().tokenizer() == v1::TOKENIZER_GPT2 ? 50257 : 256;
}

int64_t ParameterCount(const v1::JobSpec& spec) {
  const std::vector<LayerKind> kinds = KindsOf(spec);
  const Sizes& model = kinds[0].sizes;
  int64_t parameters = model.vocab * model.dim + HeadParameters(spec, model);
  for (const auto& [s, layers] : kinds) {
    parameters += layers * (AttentionParameters(spec, s) + MlpParameters(s));
  }
  return parameters;
}

std::vector<int64_t> PartParameters(const v1::JobSpec& spec) {
  const std::vector<LayerAttention> turns = LayersOf(spec.nsa());
  const Sizes model(spec, turns[0]);
  std::vector<int64_t> parts = {HeadParameters(spec, model)};
  for (int32_t layer = spec.model().n_layers() - 1; layer >= 0; --layer) {
    const Sizes s(spec, turns[layer % turns.size()]);
    parts.push_back(MlpParameters(s));
    parts.push_back(AttentionParameters(spec, s));
  }
  parts.push_back(model.vocab * model.dim);
  return parts;
}

int64_t TokensPerStep(const v1::JobSpec& spec) {
  return int64_t{1} * spec.train().batch_size() * spec.train().accumulate_grad_batches() *
         spec.train().seq_len();
}

double FlopsPerToken(const v1::JobSpec& spec) {
  const StepFlops flops = StepFlopsOf(spec);
  return flops.weights + flops.attention;
}

int64_t CheckpointBytes(const v1::JobSpec& spec) {
  // fp32 master weights and two moments, then headers and state.json.
  return 12 * ParameterCount(spec) + (int64_t{256} << 10);
}

double DiskForCheckpoints(const v1::JobSpec& spec) {
  const double ranks = RanksOf(spec);
  const double handed_over = 4.0 * static_cast<double>(ParameterCount(spec)) * (ranks - 1) / ranks;
  return (spec.train().keep_checkpoints() + 1.0) * static_cast<double>(CheckpointBytes(spec)) +
         handed_over;
}

double ExpectedTokensPerSecond(const v1::JobSpec& spec, const std::string& device_name, int cores,
                               int64_t memory) {
  const double ranks = static_cast<double>(RanksOf(spec));
  StepFlops flops = StepFlopsOf(spec);
  const Recompute recompute = RecomputeOf(spec, memory);
  if (recompute == Recompute::kBlock) {  // a second forward
    flops.weights *= 4.0 / 3.0;
    flops.attention *= 4.0 / 3.0;
  }
  if (recompute == Recompute::kMlp) {  // a second fc1
    flops.weights += 2.0 * spec.model().n_layers() * spec.model().dim() *
                     static_cast<double>(MlpInputsOf(spec.model()));
  }
  const auto step_tokens = static_cast<double>(TokensPerStep(spec));
  const double muon = MuonFlops(MuonMatrices(spec, KindsOf(spec))) /
                      (ShardsOptimizer(spec, RanksOf(spec)) ? ranks : 1);
  if (device_name == "cpu") {
    return kCpuCoreFlops * std::max(1, cores) /
           (flops.weights + flops.attention + ranks * muon / step_tokens);
  }
  const double tokens = static_cast<double>(RankTokens(spec));
  const double precision = IsBf16(spec) ? 1.0 : 0.1;  // fp32 without tensor cores
  const double matrix_flops = MatrixFlops(device_name) * precision;
  const StepShares shares = StepSharesOf(device_name);
  const double of_token = (flops.weights / shares.weights + flops.attention / shares.attention) *
                          (tokens + kHalfSpeedTokens) / tokens;
  const double computed = ranks * matrix_flops / of_token;
  const double launches = 1.0 * spec.model().n_layers() * PassesOf(spec).count;
  const double seconds = std::max(step_tokens / computed, launches * kLaunchSeconds);
  return step_tokens / (seconds + muon / (matrix_flops * kMuonShare));
}

}  // namespace nsa
