#include "common/estimate/estimate.h"

#include <algorithm>
#include <map>

#include "common/estimate/devices.h"
#include "common/estimate/memory/memory.h"
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

int64_t BlockParameters(const v1::JobSpec& spec, const Sizes& s) {
  int64_t block = s.block_matrices() + 2 * s.dim;
  block += GateParameters(spec.model().d_k(), s.n_branches);
  if (!s.phi_mlp) return block;
  return block + PhiParameters(spec.nsa().l(), spec.model().d_k()) +
         PhiParameters(spec.nsa().l(), spec.model().d_v());
}

// Operations of a layer's attention per token, forward: two per key for each of a head's dk and dv
// columns, and those of φ. `keys` are the keys that a query reads in each branch.
double AttentionFlops(const v1::JobSpec& spec, const Sizes& s,
                      const std::array<double, kBranches>& keys) {
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

// The share of matrix_flops that a whole training step reaches, recomputation included. Measured
// 2026-11-22 on one H200 with m7c (nsa-bench step): 349,091 tok/s with micro-batches of 4,096
// tokens and checkpointing, 495,045 with 65,536 tokens and checkpointing, and 525,021 with 65,536
// tokens without checkpointing. That is 0.29, 0.42 and 0.41 of 788 TFLOP/s.
constexpr double kStepShare = 0.42;
constexpr double kHalfSpeedTokens = 1800;  // tokens per micro-batch that reach half of kStepShare

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
  int64_t parameters = 2 * model.vocab * model.dim + model.dim;
  for (const auto& [s, layers] : kinds) parameters += layers * BlockParameters(spec, s);
  return parameters;
}

int64_t TokensPerStep(const v1::JobSpec& spec) {
  return int64_t{1} * spec.train().batch_size() * spec.train().accumulate_grad_batches() *
         spec.train().seq_len();
}

double FlopsPerToken(const v1::JobSpec& spec) {
  const std::vector<LayerKind> kinds = KindsOf(spec);
  const std::array<double, kBranches> keys = MeanKeysRead(ShapeOf(spec));
  // Forward: two operations per weight.
  int64_t weights = kinds[0].sizes.vocab * kinds[0].sizes.dim;
  double attention = 0;
  for (const auto& [s, layers] : kinds) {
    weights += layers * s.block_matrices();
    attention += static_cast<double>(layers) * AttentionFlops(spec, s, keys);
  }
  // Backward takes twice the forward.
  return 3.0 * (2.0 * static_cast<double>(weights) + attention);
}

int64_t CheckpointBytes(const v1::JobSpec& spec) {
  // fp32 master weights and two moments, then headers and state.json.
  return 12 * ParameterCount(spec) + (int64_t{256} << 10);
}

double ExpectedTokensPerSecond(const v1::JobSpec& spec, const std::string& device_name, int cores,
                               int64_t memory) {
  const double ranks = static_cast<double>(RanksOf(spec));
  double flops = FlopsPerToken(spec);
  const Recompute recompute = RecomputeOf(spec, memory);
  if (recompute == Recompute::kBlock) flops *= 4.0 / 3.0;  // a second forward
  if (recompute == Recompute::kMlp) {                      // a second fc1
    flops += 2.0 * spec.model().n_layers() * spec.model().dim() * spec.model().dim() *
             spec.model().mlp_ratio();
  }
  const auto step_tokens = static_cast<double>(TokensPerStep(spec));
  const double muon = MuonFlops(MuonMatrices(spec, KindsOf(spec))) /
                      (ShardsOptimizer(spec, RanksOf(spec)) ? ranks : 1);
  if (device_name == "cpu") {
    return kCpuCoreFlops * std::max(1, cores) / (flops + ranks * muon / step_tokens);
  }
  const double tokens = static_cast<double>(RankTokens(spec));
  const double share = kStepShare * tokens / (tokens + kHalfSpeedTokens);
  const double precision = IsBf16(spec) ? 1.0 : 0.1;  // fp32 without tensor cores
  const double computed = ranks * MatrixFlops(device_name) * share * precision / flops;
  const double launches = 1.0 * spec.model().n_layers() * PassesOf(spec).count;
  const double seconds = std::max(step_tokens / computed, launches * kLaunchSeconds);
  return step_tokens / (seconds + muon / (MatrixFlops(device_name) * kMuonShare * precision));
}

}  // namespace nsa
