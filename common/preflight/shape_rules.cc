// Rules about the shape of the model and of the attention. The limits are those of NsaShape, which
// the kernels check too, so preflight accepts exactly the shapes that the kernels accept.
#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/count.h"
#include "common/estimate/estimate.h"
#include "common/estimate/layers.h"
#include "common/estimate/model_options.h"
#include "common/estimate/passes.h"
#include "common/job/data/tokenizer_files.h"
#include "common/nsa/branch.h"
#include "common/preflight/data/data_facts.h"
#include "common/preflight/rules.h"

namespace nsa {
namespace {

Problems Groups(const PreflightFacts& facts) {
  const auto& model = facts.spec.model();
  if (model.n_kv_groups() < 1 || model.n_heads() % model.n_kv_groups() == 0) return {};
  return {{"model.n_kv_groups",
           absl::StrFormat("%d (must divide n_heads = %d)", model.n_kv_groups(), model.n_heads()),
           "choose a divisor of n_heads"}};
}

Problems Stride(const PreflightFacts& facts) {
  const auto& nsa = facts.spec.nsa();
  if (nsa.d() < 1) return {};
  Problems problems;
  if (nsa.l() % nsa.d() != 0) {
    problems.push_back({"nsa.l",
                        absl::StrFormat("%d (must be a multiple of d = %d)", nsa.l(), nsa.d()),
                        "choose a multiple of d, or a smaller d"});
  }
  if (nsa.l_sel() % nsa.d() != 0) {
    problems.push_back({"nsa.l_sel",
                        absl::StrFormat("%d (must be a multiple of d = %d)", nsa.l_sel(), nsa.d()),
                        "choose a multiple of d, or a smaller d"});
  }
  return problems;
}

// Ranks that share a sequence: whole groups of them, whole heads for each, as many tokens, and all
// of a group on one machine and with the same sequences.
Problems ContextParallel(const PreflightFacts& facts) {
  constexpr const char* kField = "resources.context_parallel";
  constexpr const char* kFix = "choose another, or set context_parallel: 1";
  const v1::ResourceSpec& resources = facts.spec.resources();
  if (!resources.has_context_parallel() || resources.context_parallel() == 1) return {};
  const int64_t context = resources.context_parallel();
  if (context < 1) {
    return {{kField, absl::StrFormat("%d (at least 1)", context), "set context_parallel: 1"}};
  }
  Problems problems;
  const auto divides = [&](const char* name, int64_t value) {
    if (value % context == 0) return;
    problems.push_back(
        {kField, absl::StrFormat("%d (must divide %s = %d)", context, name, value), kFix});
  };
  divides("resources.gpus", facts.ranks());
  divides("model.n_kv_groups", facts.spec.model().n_kv_groups());
  divides("train.seq_len", facts.spec.train().seq_len());
  if (facts.spec.data().allow_synthetic_fallback()) {
    problems.push_back({"data.allow_synthetic_fallback",
                        "true with context_parallel (false: a rank that alone falls back has other "
                        "sequences than those that share its own)",
                        "set allow_synthetic_fallback: false"});
  }
  const int64_t machines = facts.machines();
  const bool whole = facts.ranks() % machines == 0 && facts.ranks() / machines % context == 0;
  if (problems.empty() && machines > 1 && !whole) {
    problems.push_back(
        {"resources.nodes",
         absl::StrFormat(
             "%d machines for %d ranks (each needs whole groups of context_parallel = %d)",
             machines, facts.ranks(), context),
         "set nodes: 1, or as many ranks on each machine as are whole groups"});
  }
  return problems;
}

// The job file's key for a field of NsaShape.
std::string SpecField(std::string_view field) {
  if (field == "batch") return "train.batch_size";
  if (field == "seq_len") return "train.seq_len";
  for (const std::string_view name : {"n_heads", "n_kv_groups", "d_k", "d_v"}) {
    if (field == name) return absl::StrCat("model.", std::string(field));
  }
  return absl::StrCat("nsa.", std::string(field));
}

// The shape of one rank's micro-batch. A batch smaller than the ranks counts as one sequence here;
// BATCH_NOT_DIVISIBLE reports it.
NsaShape RankShape(const PreflightFacts& facts) {
  NsaShape shape = RankShapeOf(facts.spec);
  const bool some = facts.spec.train().batch_size() > 0 && facts.ranks() > 0;
  if (some && shape.batch == 0) shape.batch = 1;
  return shape;
}

// Everything that NsaShape refuses except what SHAPE_GROUPS and SHAPE_STRIDE report.
Problems Invalid(const PreflightFacts& facts) {
  if (!Groups(facts).empty() || !Stride(facts).empty() || !ContextParallel(facts).empty()) {
    return {};
  }
  const NsaShape shape = RankShape(facts);
  const std::optional<ShapeProblem> problem =
      facts.cuda() ? shape.FindProblemOnCuda() : shape.FindProblem();
  if (!problem) return {};
  return {{SpecField(problem->field), absl::StrFormat("%d (%s)", problem->value, problem->limit),
           problem->fix}};
}

constexpr int kCudaWidth = 8;  // bf16 elements that a GPU kernel reads at once

Problems CudaWidth(const PreflightFacts& facts) {
  const int64_t dim = facts.spec.model().dim();
  if (!facts.cuda() || dim % kCudaWidth == 0) return {};
  return {{"model.dim", absl::StrFormat("%d (must be a multiple of %d on a GPU)", dim, kCudaWidth),
           absl::StrFormat("set it to %d", (dim / kCudaWidth + 1) * kCudaWidth)}};
}

Problems BatchNotDivisible(const PreflightFacts& facts) {
  const int64_t batch = facts.spec.train().batch_size();
  const int context = ContextOf(facts.spec);
  const int64_t groups = facts.ranks() / context;
  if (groups < 1 || facts.ranks() % context != 0 || batch % groups == 0) return {};
  return {
      {"train.batch_size",
       absl::StrFormat("%d sequences (must be a multiple of the %d %s)", batch, groups,
                       context == 1 ? "ranks" : "groups of ranks"),
       absl::StrFormat("set it to %d, or change resources.gpus", (batch / groups + 1) * groups)}};
}

Problems MergeNotDivisible(const PreflightFacts& facts) {
  if (!facts.spec.runtime().has_merge_micro_batches()) return {};
  const int merged = facts.spec.runtime().merge_micro_batches();
  const int micro_batches = facts.spec.train().accumulate_grad_batches();
  if (merged >= 1 && micro_batches % merged == 0) return {};
  return {{"runtime.merge_micro_batches",
           absl::StrFormat("%d (must divide accumulate_grad_batches = %d)", merged, micro_batches),
           "remove it, or set a divisor"}};
}

Problems Branches(const PreflightFacts& facts) {
  Problems problems;
  BranchSet seen = {};
  for (const int branch : facts.spec.nsa().branches()) {
    const int place = branch - v1::BRANCH_CMP;
    if (place < 0 || place >= kBranches) {
      problems.push_back({"nsa.branches",
                          absl::StrFormat("unknown branch %d (one of %s)", branch,
                                          absl::StrJoin(kBranchNames, ", ")),
                          "remove it"});
    } else if (std::exchange(seen[place], true)) {
      problems.push_back({"nsa.branches", "a branch is named twice", "name it once"});
    }
  }
  const auto problem = FindLayersProblem(facts.spec.nsa(), facts.spec.model().n_layers());
  if (problem) problems.push_back({problem->field, problem->what, problem->fix});
  return problems;
}

// The tokens of the job's tokenizer; nothing if only a file says it that cannot be read here.
std::optional<int> TokenizerSize(const PreflightFacts& facts) {
  const auto& data = facts.spec.data();
  if (data.tokenizer() == v1::TOKENIZER_GPT2) return 50257;
  if (data.tokenizer() != v1::TOKENIZER_BPE) return 256;
  if (!MayLook(facts) || data.tokenizer_path().empty()) return std::nullopt;
  const auto file = TokenizerFilesOf(data.tokenizer(), data.tokenizer_path()).front();
  const auto read = ReadTokenizerFacts(file);
  return read.ok() ? std::optional<int>(read->tokens) : std::nullopt;
}

Problems VocabTooSmall(const PreflightFacts& facts) {
  const int vocab = facts.spec.model().vocab();
  const int tokens = TokenizerSize(facts).value_or(0);
  if (vocab == 0 || vocab >= tokens) return {};
  return {{"model.vocab", absl::StrFormat("%d (the tokenizer has %d tokens)", vocab, tokens),
           absl::StrFormat("remove it, or set at least %d", tokens)}};
}

Problems SeqLenShort(const PreflightFacts& facts) {
  const auto& nsa = facts.spec.nsa();
  const int seq_len = facts.spec.train().seq_len();
  BranchSet has = {};
  for (const LayerAttention& layer : LayersOf(nsa)) {
    for (int b = 0; b < kBranches; ++b) has[b] |= layer.branches[b] && !layer.full;
  }
  Problems problems;
  if (has[kCmp] && seq_len < nsa.l()) {
    problems.push_back({"train.seq_len",
                        absl::StrFormat("%d tokens (nsa.l is %d): the compressed branch never sees "
                                        "a block",
                                        seq_len, nsa.l()),
                        "use longer sequences or smaller blocks"});
  }
  if (has[kWin] && seq_len < nsa.w()) {
    problems.push_back(
        {"train.seq_len",
         absl::StrFormat(
             "%d tokens (nsa.w is %d): the window is all of the past, so attention is dense",
             seq_len, nsa.w()),
         "use longer sequences or a smaller window"});
  }
  if (has[kSel] && seq_len <= int64_t{nsa.l_sel()} * nsa.n_sel()) {
    problems.push_back(
        {"train.seq_len",
         absl::StrFormat("%d tokens (nsa.n_sel · nsa.l_sel is %d): every block is selected",
                         seq_len, int64_t{nsa.l_sel()} * nsa.n_sel()),
         "use longer sequences, or fewer or smaller blocks"});
  }
  return problems;
}

bool Selects(const LayerAttention& layer) { return layer.branches[kSel]; }

// Every query's first block and its last two are forced.
constexpr int kForcedBlocks = 3;

Problems NothingChosen(const PreflightFacts& facts) {
  const auto& nsa = facts.spec.nsa();
  const bool selects = std::ranges::any_of(LayersOf(nsa), Selects);
  // With shorter sequences SEQ_LEN_SHORT says that every block is selected.
  const bool long_enough = facts.spec.train().seq_len() > kForcedBlocks * int64_t{nsa.l_sel()};
  if (!selects || !long_enough || nsa.n_sel() > kForcedBlocks) return {};
  return {{"nsa.n_sel",
           absl::StrFormat("%d (more than %d): every query reads its first block and its last two, "
                           "and none is chosen by score",
                           nsa.n_sel(), kForcedBlocks),
           "set n_sel to 8 to 16, or leave sel out of nsa.branches"}};
}

// How much longer a step is than with six heads a group: all branches, 2,048 tokens, one H200,
// 2026-11-30. A tile of the kernels for selected blocks has 192 rows, 32 for each head of a group.
Problems FewHeads(const PreflightFacts& facts) {
  const v1::ModelSpec& model = facts.spec.model();
  const bool divides = model.n_kv_groups() > 0 && model.n_heads() % model.n_kv_groups() == 0;
  const int heads = divides ? model.n_heads() / model.n_kv_groups() : 0;
  if (!facts.cuda() || heads < 1 || heads > 2) return {};
  if (std::ranges::none_of(LayersOf(facts.spec.nsa()), Selects)) return {};
  return {{"model.n_kv_groups",
           absl::StrFormat("%d, %d of the %d heads in a group (6 fill the tiles of a GPU): a step "
                           "may take %.1f times as long",
                           model.n_kv_groups(), heads, model.n_heads(), heads == 1 ? 1.6 : 1.2),
           "let more heads share a key and a value"}};
}

// The longest sequences that were trained here with the default base and the rotation in all
// layers: docs/quality.md.
constexpr int kLongestPlainRotation = 8192;

// A layer that rotates and reads tokens from further back.
bool RotatesFar(const v1::JobSpec& spec, const LayerAttention& layer) {
  const bool rotates =
      spec.model().rope_layers() != v1::ROPE_LAYERS_WINDOW || (layer.branches[kWin] && !layer.full);
  const bool far = layer.full || layer.branches[kCmp] || layer.branches[kSel] ||
                   spec.nsa().w() > kLongestPlainRotation;
  return rotates && far;
}

Problems RopeBase(const PreflightFacts& facts) {
  const v1::ModelSpec& model = facts.spec.model();
  const int seq_len = facts.spec.train().seq_len();
  const bool plain =
      model.rope_base() <= 10'000 && model.rope_scale() <= 1 && !model.has_rope_scaling();
  const auto far = [&](const LayerAttention& layer) { return RotatesFar(facts.spec, layer); };
  if (!plain || seq_len <= kLongestPlainRotation ||
      std::ranges::none_of(LayersOf(facts.spec.nsa()), far)) {
    return {};
  }
  return {{"model.rope_base",
           absl::StrFormat("%s (it suits some thousand tokens: docs/settings.md), and layers that "
                           "rotate read far back in sequences of %s tokens",
                           Number(model.rope_base()), Grouped(seq_len)),
           "set rope_layers: window with nsa.layers: [win, sel], or rope_base: 1e6; with either "
           "every key was found in 16,384 tokens (docs/commands.md, A key in a long context)"}};
}

// Whether full layers leave order to windows that the model does not have.
bool FullWithoutRotation(const v1::JobSpec& spec) {
  if (spec.model().rope_layers() != v1::ROPE_LAYERS_WINDOW) return false;
  const std::vector<LayerAttention> layers = LayersOf(spec.nsa());
  return std::ranges::any_of(layers, &LayerAttention::full) &&
         std::ranges::none_of(layers, [](const LayerAttention& layer) {
           return layer.branches[kWin] && !layer.full;
         });
}

// Keys of `model` that one model cannot have together.
Problems ModelConflict(const PreflightFacts& facts) {
  const v1::ModelSpec& model = facts.spec.model();
  Problems problems;
  if (IsSwiglu(model) && model.activation() == v1::ACTIVATION_RELU2) {
    problems.push_back({"model.activation", "relu2 with mlp: swiglu (must be silu)",
                        "remove the key, or set mlp: plain"});
  }
  if (model.qk_norm_weights() && !model.qk_norm()) {
    problems.push_back({"model.qk_norm_weights", "true without qk_norm (they are its weights)",
                        "set qk_norm: true, or remove the key"});
  }
  const v1::RopeScaling& scaling = model.rope_scaling();
  const auto other = [&](bool set, const char* key, v1::RopeScalingType type, const char* word) {
    if (!set || scaling.type() == type) return;
    problems.push_back({absl::StrCat("model.rope_scaling.", key),
                        absl::StrFormat("set, but the type is not %s", word), "remove the key"});
  };
  constexpr auto kLlama3 = v1::ROPE_SCALING_TYPE_LLAMA3, kYarn = v1::ROPE_SCALING_TYPE_YARN;
  other(scaling.has_low_freq_factor(), "low_freq_factor", kLlama3, "llama3");
  other(scaling.has_high_freq_factor(), "high_freq_factor", kLlama3, "llama3");
  other(scaling.has_beta_fast(), "beta_fast", kYarn, "yarn");
  other(scaling.has_beta_slow(), "beta_slow", kYarn, "yarn");
  if (FullWithoutRotation(facts.spec)) {
    problems.push_back({"model.rope_layers",
                        "window with full layers and none that has the branch win (no layer would "
                        "know the order of tokens)",
                        "remove the key, or give a layer a window"});
  }
  return problems;
}

constexpr PreflightRule kShapeRules[] = {
    {"SHAPE_GROUPS", "n_kv_groups does not divide n_heads", kError, kError, false, kGuardsSizes,
     Groups},
    {"SHAPE_STRIDE", "d does not divide l or l_sel", kError, kError, false, kGuardsSizes, Stride},
    {"SHAPE_INVALID", "a size is outside the limits of the kernels (common/nsa/nsa_shape.h)",
     kError, kError, false, kGuardsSizes, Invalid},
    {"MODEL_CONFLICT", "two keys of `model` exclude each other", kError, kError, false, kNothing,
     ModelConflict},
    {"CUDA_WIDTH", "dim is not a multiple of 8, on a GPU", kError, kError, false, kNothing,
     CudaWidth},
    {"BATCH_NOT_DIVISIBLE",
     "batch_size is not a multiple of the ranks, or of the groups that share sequences", kError,
     kError, false, kGuardsSizes, BatchNotDivisible},
    {"CONTEXT_PARALLEL",
     "context_parallel does not divide ranks, groups or tokens, or several machines share a group",
     kError, kError, false, kGuardsSizes, ContextParallel},
    {"MERGE_NOT_DIVISIBLE", "merge_micro_batches does not divide accumulate_grad_batches", kError,
     kError, false, kGuardsSizes, MergeNotDivisible},
    {"BRANCHES_INVALID", "a branch is unknown or named twice, or layers does not fit the model",
     kError, kError, false, kNothing, Branches},
    {"VOCAB_TOO_SMALL", "vocab is smaller than the tokenizer's", kError, kError, false, kNothing,
     VocabTooSmall},
    {"SEQ_LEN_SHORT", "sequences are so short that a branch sees nothing or attention is dense",
     v1::SEVERITY_WARNING, v1::SEVERITY_INFO, true, PreflightRule::kSizes, SeqLenShort},
    {"SELECTION_FORCED", "n_sel is so small that no block is chosen by its score", kWarning, kInfo,
     true, kSizes, NothingChosen},
    {"GROUPS_SMALL", "one or two heads share a key and a value, on a GPU", kInfo, kInfo, true,
     kNothing, FewHeads},
    {"ROPE_BASE", "rope_base is small for the distances that rotated layers read", kInfo, kInfo,
     true, kNothing, RopeBase},
};

}  // namespace

std::span<const PreflightRule> ShapeRules() { return kShapeRules; }

}  // namespace nsa
