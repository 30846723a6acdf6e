#include "common/estimate/estimate.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "common/estimate/devices.h"
#include "common/estimate/layers.h"
#include "common/estimate/muon_plan.h"
#include "common/estimate/passes.h"
#include "common/estimate/sampling.h"
#include "common/estimate/shares.h"
#include "common/nsa/attention_scratch.h"
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

// 64-bit sizes that the formulas share, for layers with these branches.
struct Sizes {
  Sizes(const v1::JobSpec& spec, const BranchSet& layer_branches)
      : dim(spec.model().dim()),
        vocab(VocabOf(spec)),
        hidden(int64_t{spec.model().mlp_ratio()} * dim),
        q(int64_t{spec.model().n_heads()} * spec.model().d_k()),
        o(int64_t{spec.model().n_heads()} * spec.model().d_v()),
        k(int64_t{spec.model().n_kv_groups()} * spec.model().d_k()),
        v(int64_t{spec.model().n_kv_groups()} * spec.model().d_v()),
        branches(layer_branches),
        n_branches(CountOf(branches)),
        phi_mlp(branches[kCmp] && spec.nsa().phi() == v1::PHI_MLP) {}

  int64_t dim, vocab, hidden;
  int64_t q, o, k, v;  // width over all heads; k and v of one branch
  BranchSet branches;
  int64_t n_branches;  // also the K/V projections and gate rows per block
  bool phi_mlp;

  // Weights of the matrix products in a block.
  int64_t block_matrices() const {
    return dim * q + n_branches * dim * (k + v) + dim * o + 2 * dim * hidden;
  }
};

// Layers with the same branches.
struct LayerKind {
  Sizes sizes;
  int64_t layers;  // how many
};

// The kinds of layers, at least one. Kinds differ in their branches only.
std::vector<LayerKind> KindsOf(const v1::JobSpec& spec) {
  const std::vector<BranchSet> turns = LayerBranchesOf(spec.nsa());
  const auto period = static_cast<int64_t>(turns.size());
  std::vector<LayerKind> kinds;
  for (int64_t i = 0; i < period; ++i) {
    const int64_t layers = (spec.model().n_layers() - i + period - 1) / period;
    kinds.push_back({Sizes(spec, turns[i]), layers});
  }
  return kinds;
}

int64_t Largest(const std::vector<LayerKind>& kinds, auto size_of) {
  int64_t largest = 0;
  for (const LayerKind& kind : kinds) largest = std::max<int64_t>(largest, size_of(kind.sizes));
  return largest;
}

bool IsBf16(const v1::JobSpec& spec) {
  if (spec.runtime().precision() != v1::PRECISION_UNSPECIFIED) {
    return spec.runtime().precision() == v1::PRECISION_BF16;
  }
  return spec.runtime().device() != v1::DEVICE_CPU;
}

// What a rank keeps for one pass. It follows the layout in worker/train/model/block.cc and
// kernels/nsa/layer/layer_memory.cc.
struct Kept {
  int64_t elements = 0;  // in the precision of the arithmetic
  int64_t words = 0;     // always four bytes
  int64_t bytes(int64_t width) const { return elements * width + words * 4; }
};

// Kept per block: q and v, the attention output, and the residual stream after the attention.
Kept BlockKept(const Sizes& s, int64_t tokens) {
  return {tokens * (s.dim + s.q + s.n_branches * s.v + s.o), 0};
}

// Kept per block and cheap to recompute: the two norms, the output of fc1 and its activation.
Kept MlpKept(const Sizes& s, int64_t tokens) {
  return {tokens * (2 * s.dim + 2 * s.hidden), 2 * tokens};
}

// Compressed tokens over all heads that are as much memory as a rank's.
int64_t CompressedTokens(const v1::JobSpec& spec) {
  const NsaShape shape = ShapeOf(spec);
  return int64_t{shape.batch} * shape.cmp_blocks() / ContextOf(spec);
}

// Kept per block by the attention: rotated q and k (with qk_norm also their factors), branch
// outputs, log-sum-exp, compressed keys and values, selected blocks, gates.
Kept AttentionKept(const v1::JobSpec& spec, const Sizes& s, int64_t tokens) {
  const NsaShape shape = ShapeOf(spec);
  const int64_t count = s.n_branches;
  Kept kept;
  kept.elements = tokens * (s.q + count * s.k + (count > 1 ? count * s.o : 0));
  kept.words = tokens * (count * shape.n_heads + (count > 1 ? count * shape.n_kv_groups : 0));
  if (spec.model().qk_norm()) kept.words += tokens * (shape.n_heads + count * shape.n_kv_groups);
  if (s.branches[kCmp] || s.branches[kSel]) kept.elements += CompressedTokens(spec) * s.k;
  if (s.branches[kCmp]) kept.elements += CompressedTokens(spec) * s.v;
  if (s.phi_mlp) kept.elements += CompressedTokens(spec) * (s.k + s.v);
  if (s.branches[kSel]) kept.words += tokens * shape.n_kv_groups * shape.n_sel;
  if (count == 1 && ContextOf(spec) > 1) kept.elements += tokens * s.o;
  return kept;
}

// Workspace of backward, shared by all blocks: the projections side by side and the gradients of
// activations, on the CPU with those of the branch outputs.
Kept BackwardWorkspace(const v1::JobSpec& spec, const Sizes& s, int64_t tokens) {
  const bool cpu = spec.runtime().device() == v1::DEVICE_CPU;
  const int64_t count = s.n_branches;
  Kept kept;
  kept.elements = tokens * (2 * s.q + 2 * count * (s.k + s.v) + s.o + s.dim + s.hidden);
  if (count > 1) kept.elements += tokens * (s.k + (cpu ? count * s.o : 0));
  if (s.branches[kCmp]) kept.elements += CompressedTokens(spec) * (s.k + s.v);
  if (s.phi_mlp) kept.elements += CompressedTokens(spec) * (s.k + s.v);
  if (ContextOf(spec) == 1) return kept;
  // What is exchanged with the ranks of the same sequences, and gated outputs before the exchange.
  kept.elements += tokens * std::max(s.o, s.q + count * (s.k + s.v));
  if (count > 1) kept.elements += tokens * s.o;
  return kept;
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

// With gradient checkpointing the attention results are kept if they take no more than this: half
// of a GPU with 24 GB, and enough for m7c with 65,536 tokens per micro-batch.
constexpr int64_t kKeptAttentionBytes = int64_t{12} << 30;

// Bytes of the activations without those of the attention, and of those.
struct Activations {
  int64_t blocks = 0;
  int64_t attention = 0;
};

Activations ActivationBytes(const v1::JobSpec& spec, const std::vector<LayerKind>& kinds,
                            Recompute recompute) {
  const Sizes& model = kinds[0].sizes;
  const int64_t width = IsBf16(spec) ? 2 : 4;
  const int64_t n_layers = spec.model().n_layers();
  const int64_t tokens = RankTokens(spec);
  // The input of every block, the output of the last block and of the final norm, and a gradient;
  // rstd and the row losses. Also tokens, targets and document starts of every loaded pass: a GPU
  // loads all passes of a step.
  const int64_t loaded = spec.runtime().device() != v1::DEVICE_CPU ? PassesOf(spec).count : 1;
  const Kept residuals{tokens * (n_layers + 3) * model.dim,
                       (2 + (2 + ContextOf(spec)) * loaded) * tokens};
  // Blocks share one MLP's memory when it is recomputed.
  const int64_t mlps = recompute == Recompute::kNothing ? n_layers : 1;
  const int64_t others = residuals.bytes(width) + mlps * MlpKept(model, tokens).bytes(width);
  Activations sum, largest;
  for (const auto& [s, layers] : kinds) {
    const int64_t block = BlockKept(s, tokens).bytes(width);
    const int64_t attention = AttentionKept(spec, s, tokens).bytes(width);
    sum.blocks += layers * block;
    sum.attention += layers * attention;
    if (block + attention > largest.blocks + largest.attention) largest = {block, attention};
  }
  // Blocks that are recomputed as a whole share one memory: the largest counts.
  const Activations& kept = recompute == Recompute::kBlock ? largest : sum;
  return {others + kept.blocks, kept.attention};
}

// The matrices that Muon updates, by shape; empty with AdamW.
std::map<MuonShape, int64_t> MuonMatrices(const v1::JobSpec& spec,
                                          const std::vector<LayerKind>& kinds) {
  std::map<MuonShape, int64_t> matrices;
  if (spec.train().optimizer() != v1::OPTIMIZER_MUON) return matrices;
  for (const auto& [s, layers] : kinds) {
    matrices[MuonShape::Of(s.q, s.dim)] += layers;
    matrices[MuonShape::Of(s.k, s.dim)] += layers * s.n_branches;
    matrices[MuonShape::Of(s.v, s.dim)] += layers * s.n_branches;
    matrices[MuonShape::Of(s.o, s.dim)] += layers;
    matrices[MuonShape::Of(s.hidden, s.dim)] += 2 * layers;
  }
  return matrices;
}

// The elements of the largest share of a rank, at most: with Muon a cut moves by half a matrix.
int64_t LargestShare(const v1::JobSpec& spec, const std::vector<LayerKind>& kinds) {
  const int32_t ranks = RanksOf(spec);
  const int64_t parameters = ParameterCount(spec);
  if (!ShardsOptimizer(spec, ranks)) return parameters;
  int64_t matrix = 0;
  for (const auto& [shape, count] : MuonMatrices(spec, kinds)) {
    matrix = std::max(matrix, shape.p * shape.q);
  }
  return std::min(parameters, (parameters + ranks - 1) / ranks + matrix);
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

Recompute RecomputeOf(const v1::JobSpec& spec) {
  if (!spec.runtime().gradient_checkpointing()) return Recompute::kNothing;
  const int64_t width = IsBf16(spec) ? 2 : 4;
  const int64_t tokens = RankTokens(spec);
  int64_t kept = 0;
  for (const auto& [s, layers] : KindsOf(spec)) {
    kept +=
        layers * (BlockKept(s, tokens).bytes(width) + AttentionKept(spec, s, tokens).bytes(width));
  }
  return kept <= kKeptAttentionBytes ? Recompute::kMlp : Recompute::kBlock;
}

std::vector<MemoryItem> MemoryEstimate(const v1::JobSpec& spec) {
  const std::vector<LayerKind> kinds = KindsOf(spec);
  const bool bf16 = IsBf16(spec);
  const bool cuda = spec.runtime().device() != v1::DEVICE_CPU;
  const Recompute recompute = RecomputeOf(spec);
  const int64_t parameters = ParameterCount(spec);
  const int64_t width = bf16 ? 2 : 4;
  const int64_t tokens = RankTokens(spec);

  const int64_t share = LargestShare(spec, kinds);

  std::vector<MemoryItem> items = {
      {"master weights", 4 * (cuda ? share : parameters)},
      {"gradients", 4 * parameters},
      {"optimizer moments", 8 * share},
  };
  // What travels is a bucket of 16 MiB on a GPU, all gradients on the CPU.
  if (SendsBf16Gradients(spec, RanksOf(spec))) {
    items.push_back({"gradients in bf16", cuda ? int64_t{8} << 20 : 2 * parameters});
  }
  if (bf16) items.push_back({"bf16 weights", 2 * parameters});
  constexpr const char* kActivations[] = {"activations", "activations, MLP recomputed",
                                          "activations, recomputed by block"};
  const auto [activations, attention] = ActivationBytes(spec, kinds, recompute);
  items.push_back({kActivations[static_cast<int>(recompute)], activations});
  items.push_back({"attention, saved for backward", attention});
  items.push_back({"backward workspace", Largest(kinds, [&](const Sizes& s) {
                     return BackwardWorkspace(spec, s, tokens).bytes(width);
                   })});
  items.push_back({"logits", tokens * kinds[0].sizes.vocab * width});
  // The losses of a mixture's sources are those of their tokens, kept until the end of the step.
  // The activations have those of one pass; the CPU adds them up after each pass.
  if (cuda && !spec.data().mix().empty() && PassesOf(spec).count > 1) {
    items.push_back({"token losses of other passes", 4 * tokens * (PassesOf(spec).count - 1)});
  }
  // While rank 0 continues prompts after a validation.
  if (const int64_t decoder = SampleBytes(spec); decoder > 0) {
    items.push_back({"decoder of samples", decoder});
  }
  // A checkpoint is written from a copy in host memory. On the CPU that is the rank's own memory.
  if (!cuda) items.push_back({"checkpoint snapshot", 4 * parameters + 8 * share});
  const int64_t mib = int64_t{1} << 20;
  if (cuda) {
    const int64_t layer = Largest(kinds, [&](const Sizes& s) {
      return PlanLayerScratch(RankShapeOf(spec), s.branches, s.phi_mlp).bytes;
    });
    items.push_back(
        {"kernel scratch", std::max(layer, MuonScratchBytes(MuonMatrices(spec, kinds), 2))});
  }
  // On a GPU mostly CUDA itself. Measured 2026-11-21 on an H200 with CUDA 13.0 and driver 580: 609
  // to 618 MiB more than the parts above, in each of eight jobs of 2 to 26 GiB.
  items.push_back({cuda ? "libraries" : "workspace and libraries", (cuda ? 614 : 96) * mib});
  // NCCL's kernels and buffers: 850 MiB measured with two ranks on H200s with NVLink, NCCL 2.28.
  if (cuda && spec.resources().gpus() > 1) items.push_back({"NCCL", 850 * mib});
  return items;
}

int64_t TotalBytes(const std::vector<MemoryItem>& items) {
  int64_t total = 0;
  for (const MemoryItem& item : items) total += item.bytes;
  return total;
}

int64_t CheckpointBytes(const v1::JobSpec& spec) {
  // fp32 master weights and two moments, then headers and state.json.
  return 12 * ParameterCount(spec) + (int64_t{256} << 10);
}

double ExpectedTokensPerSecond(const v1::JobSpec& spec, const std::string& device_name, int cores) {
  const double ranks = static_cast<double>(RanksOf(spec));
  double flops = FlopsPerToken(spec);
  const Recompute recompute = RecomputeOf(spec);
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
