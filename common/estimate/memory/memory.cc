#include "common/estimate/memory/memory.h"

#include <algorithm>

#include "common/estimate/estimate.h"
#include "common/estimate/memory/logits.h"
#include "common/estimate/passes.h"
#include "common/estimate/sampling.h"
#include "common/estimate/shares.h"
#include "common/estimate/sizes.h"
#include "common/nsa/attention_scratch.h"

namespace nsa {
namespace {

// What a rank keeps for one pass. It follows the layout in worker/train/model/block/block_memory.cc
// and kernels/nsa/layer/layer_memory.cc.
struct Kept {
  int64_t elements = 0;  // in the precision of the arithmetic
  int64_t words = 0;     // always four bytes
  int64_t bytes(int64_t width) const { return elements * width + words * 4; }
};

// Kept per block: v, the attention output, the residual stream after the attention, and a
// factor per row of each of the two norms.
Kept BlockKept(const Sizes& s, int64_t tokens) {
  return {tokens * (s.dim + s.n_branches * s.v + s.o), 2 * tokens};
}

// Kept per block and cheap to recompute: the outputs of the two norms and of the MLP's activation
// ...
Kept NormsKept(const Sizes& s, int64_t tokens) { return {tokens * (2 * s.dim + s.hidden), 0}; }

// ... and the output of the MLP's first product.
Kept MlpKept(const Sizes& s, int64_t tokens) { return {tokens * s.mlp_inputs, 0}; }

// Compressed tokens over all heads that are as much memory as a rank's.
int64_t CompressedTokens(const v1::JobSpec& spec) {
  const NsaShape shape = ShapeOf(spec);
  return int64_t{shape.batch} * shape.cmp_blocks() / ContextOf(spec);
}

// Kept per block by the attention: rotated q and k (with qk_norm also their factors, with weights
// also what they multiply), branch outputs, log-sum-exp, compressed keys and values, selected
// blocks, gates and the mean q of a group.
Kept AttentionKept(const v1::JobSpec& spec, const Sizes& s, int64_t tokens) {
  const NsaShape shape = ShapeOf(spec);
  const int64_t count = s.n_branches;
  Kept kept;
  kept.elements = tokens * (s.q + count * s.k + (count > 1 ? count * s.o : 0));
  kept.words = tokens * (count * shape.n_heads + (count > 1 ? count * shape.n_kv_groups + s.k : 0));
  if (spec.model().qk_norm()) kept.words += tokens * (shape.n_heads + count * shape.n_kv_groups);
  if (spec.model().qk_norm_weights()) kept.elements += tokens * (s.q + count * s.k);
  if (s.branches[kCmp] || s.branches[kSel]) kept.elements += CompressedTokens(spec) * s.k;
  if (s.branches[kCmp]) kept.elements += CompressedTokens(spec) * s.v;
  if (s.phi_mlp) kept.elements += CompressedTokens(spec) * (s.k + s.v);
  if (s.branches[kSel]) kept.words += tokens * shape.n_kv_groups * shape.n_sel;
  if (count == 1 && ContextOf(spec) > 1) kept.elements += tokens * s.o;
  return kept;
}

// Workspace of an attention's backward: the projections side by side, or their gradients, and that
// of the output. On the CPU and with qk_norm also the gradients of the projections one by one, on
// the CPU those of the branch outputs.
Kept AttentionWorkspace(const v1::JobSpec& spec, const Sizes& s, int64_t tokens) {
  const bool cpu = spec.runtime().device() == v1::DEVICE_CPU;
  const int64_t count = s.n_branches;
  Kept kept;
  const int64_t projections = tokens * (s.q + count * (s.k + s.v));
  const bool one_by_one = cpu || spec.model().qk_norm();
  kept.elements = (one_by_one ? 2 : 1) * projections + tokens * s.o;
  if (count > 1) kept.elements += tokens * (s.k + (cpu ? count * s.o : 0));
  if (s.branches[kCmp]) kept.elements += CompressedTokens(spec) * (s.k + s.v);
  if (s.phi_mlp) kept.elements += CompressedTokens(spec) * (s.k + s.v);
  if (ContextOf(spec) == 1) return kept;
  // What is exchanged with the ranks of the same sequences, and gated outputs before the exchange.
  kept.elements += tokens * std::max(s.o, s.q + count * (s.k + s.v));
  if (count > 1) kept.elements += tokens * s.o;
  return kept;
}

// Workspace of backward, shared by all blocks: the gradient of a norm's output, and the output
// unless blocks keep theirs; in turn that of the attention and the hidden units of the MLP.
Kept BackwardWorkspace(const v1::JobSpec& spec, const Sizes& s, int64_t tokens,
                       Recompute recompute) {
  const int64_t attention = AttentionWorkspace(spec, s, tokens).elements;
  const int64_t norms = recompute == Recompute::kNothing ? 1 : 2;
  return {norms * tokens * s.dim + std::max(attention, tokens * s.hidden), 0};
}

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
  const int64_t mlps = recompute < Recompute::kMlp ? n_layers : 1;
  const int64_t norms = recompute == Recompute::kNothing ? n_layers : 0;
  const int64_t others = residuals.bytes(width) + mlps * MlpKept(model, tokens).bytes(width) +
                         norms * NormsKept(model, tokens).bytes(width);
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

// With gradient checkpointing the attention results are kept if they take no more than this: half
// of a GPU with 24 GB, and enough for m7c with 65,536 tokens per micro-batch.
constexpr int64_t kKeptAttentionBytes = int64_t{12} << 30;

// With gradient checkpointing, where the memory is not known.
Recompute RecomputeOfJobAlone(const v1::JobSpec& spec) {
  const int64_t width = IsBf16(spec) ? 2 : 4;
  const int64_t tokens = RankTokens(spec);
  int64_t kept = 0;
  for (const auto& [s, layers] : KindsOf(spec)) {
    kept +=
        layers * (BlockKept(s, tokens).bytes(width) + AttentionKept(spec, s, tokens).bytes(width));
  }
  return kept <= kKeptAttentionBytes ? Recompute::kMlp : Recompute::kBlock;
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

// Memory for parts of the model on their way between ranks, in elements (worker/train/model/
// gradient_window.h, weight_window.h): on a GPU for two that follow each other, the first with
// `tail` elements more, on the CPU for one. A part has gaps of a few elements, which do not count.
int64_t WindowElements(std::vector<int64_t> parts, bool cuda, int64_t tail) {
  if (!cuda) return *std::ranges::max_element(parts);
  parts.front() += tail;
  int64_t largest = 0;
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    largest = std::max(largest, parts[i] + parts[i + 1]);
  }
  return largest;
}

// The parameters of the parts by which weights travel: those of PartParameters(), but blocks whole.
std::vector<int64_t> WeightPartParameters(const v1::JobSpec& spec) {
  const std::vector<int64_t> halves = PartParameters(spec);
  std::vector<int64_t> parts = {halves.front()};
  for (size_t i = 1; i + 2 < halves.size(); i += 2) parts.push_back(halves[i] + halves[i + 1]);
  parts.push_back(halves.back());
  return parts;
}

// Weights, gradients and moments, and what of them travels between ranks.
std::vector<MemoryItem> StateItems(const v1::JobSpec& spec, const std::vector<LayerKind>& kinds) {
  const bool cuda = spec.runtime().device() != v1::DEVICE_CPU, bf16 = IsBf16(spec);
  const bool windows = ShardsGradients(spec, RanksOf(spec));
  const bool weights = ShardsParameters(spec, RanksOf(spec));
  const int64_t parameters = ParameterCount(spec), share = LargestShare(spec, kinds);
  const int64_t vocab = kinds[0].sizes.vocab;
  const int64_t tail = bf16 ? (PaddedVocab(vocab) - vocab) * kinds[0].sizes.dim : 0;
  const int64_t window = windows ? WindowElements(PartParameters(spec), cuda, tail) : 0;

  std::vector<MemoryItem> items = {
      {"master weights", 4 * (cuda || weights ? share : parameters)},
      {"gradients", 4 * (windows ? share : parameters + tail)},
      {"optimizer moments", 8 * share},
  };
  if (windows) items.push_back({"gradients on their way", 4 * window});
  // What travels is a bucket of 16 MiB on a GPU, all gradients on the CPU, or those of a part.
  if (SendsBf16Gradients(spec, RanksOf(spec))) {
    items.push_back(
        {"gradients in bf16", cuda ? int64_t{8} << 20 : 2 * (windows ? window : parameters)});
  }
  if (bf16) items.push_back({"bf16 weights", 2 * (weights ? share : parameters + tail)});
  if (weights) {
    items.push_back({"weights on their way",
                     (cuda ? 2 : 4) * WindowElements(WeightPartParameters(spec), cuda, tail)});
  }
  return items;
}

}  // namespace

std::string_view RecomputeName(Recompute recompute) {
  constexpr std::string_view kNames[] = {"nothing", "norms", "mlp", "block"};
  return kNames[static_cast<int>(recompute)];
}

Recompute RecomputeOf(const v1::JobSpec& spec, int64_t memory) {
  if (!spec.runtime().gradient_checkpointing()) return Recompute::kNothing;
  const bool known = memory > 0 && spec.runtime().device() != v1::DEVICE_CPU;
  const bool exchanges = ContextOf(spec) > 1;
  if (!known || exchanges) {
    const Recompute alone = RecomputeOfJobAlone(spec);
    if (!known || alone == Recompute::kBlock) return alone;
  }
  const auto most = static_cast<int64_t>(kShareOfMemory * static_cast<double>(memory));
  for (const Recompute one : {Recompute::kNothing, Recompute::kNorms, Recompute::kMlp}) {
    if (TotalBytes(MemoryEstimate(spec, one)) <= most) return one;
  }
  return exchanges ? Recompute::kMlp : Recompute::kBlock;
}

std::vector<MemoryItem> MemoryEstimate(const v1::JobSpec& spec) {
  return MemoryEstimate(spec, RecomputeOf(spec));
}

std::vector<MemoryItem> MemoryEstimate(const v1::JobSpec& spec, Recompute recompute) {
  const std::vector<LayerKind> kinds = KindsOf(spec);
  const bool bf16 = IsBf16(spec);
  const bool cuda = spec.runtime().device() != v1::DEVICE_CPU;
  const int64_t width = bf16 ? 2 : 4;
  const int64_t tokens = RankTokens(spec);
  const int64_t vocab = kinds[0].sizes.vocab;
  const int64_t columns = bf16 ? PaddedVocab(vocab) : vocab;

  std::vector<MemoryItem> items = StateItems(spec, kinds);
  constexpr const char* kActivations[] = {"activations", "activations, norms recomputed",
                                          "activations, MLP recomputed",
                                          "activations, recomputed by block"};
  const auto [activations, attention] = ActivationBytes(spec, kinds, recompute);
  items.push_back({kActivations[static_cast<int>(recompute)], activations});
  items.push_back({"attention, saved for backward", attention});
  items.push_back({"backward workspace", Largest(kinds, [&](const Sizes& s) {
                     return BackwardWorkspace(spec, s, tokens, recompute).bytes(width);
                   })});
  const int64_t logit_rows = bf16 ? LogitRows(tokens, columns) : tokens;
  items.push_back({"logits", logit_rows * columns * width});
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
  if (!cuda) items.push_back({"checkpoint snapshot", SnapshotBytes(spec, 1)});
  const int64_t mib = int64_t{1} << 20;
  if (cuda) {
    const NsaShape shape = RankShapeOf(spec);
    const int64_t layer = Largest(kinds, [&](const Sizes& s) {
      return PlanLayerScratch(s.full ? shape.Full() : shape, s.branches, s.phi_mlp).bytes;
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

int64_t SnapshotBytes(const v1::JobSpec& spec, int64_t ranks) {
  const int64_t parameters = ParameterCount(spec);
  const int32_t all = RanksOf(spec);
  const int64_t slice =
      ShardsOptimizer(spec, all) ? LargestShare(spec, KindsOf(spec)) : (parameters + all - 1) / all;
  return 12 * std::min(parameters, ranks * slice);
}

int64_t StartBytes(const v1::JobSpec& spec, int64_t ranks) {
  const int64_t parameters = ParameterCount(spec);
  const int32_t all = RanksOf(spec);
  const int64_t share = ShardsOptimizer(spec, all) ? LargestShare(spec, KindsOf(spec)) : parameters;
  const int64_t weights = ShardsParameters(spec, all) ? share : parameters;
  return ranks * (6 * weights + 8 * share);
}

}  // namespace nsa
