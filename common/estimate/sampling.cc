#include "common/estimate/sampling.h"

#include <algorithm>
#include <string>
#include <vector>

#include "common/estimate/estimate.h"
#include "common/estimate/layers.h"
#include "common/estimate/model_options.h"
#include "common/nsa/branch.h"

namespace nsa {
namespace {

constexpr int64_t kRows = 64;  // tokens that a decoder computes at a time

bool OnGpu(const v1::JobSpec& spec) { return spec.runtime().device() != v1::DEVICE_CPU; }

// What the parts of a decoder's memory are made of: elements in the precision of the arithmetic,
// and words of four bytes.
struct Parts {
  int64_t elements = 0;
  int64_t words = 0;
};

// The sizes of a decoder for `context` tokens.
struct Decoding {
  Decoding(const v1::JobSpec& job, int64_t context_tokens)
      : spec(job),
        context(context_tokens),
        gpu(OnGpu(job)),
        rows(gpu ? kRows : std::min(kRows, context)),
        heads(job.model().n_heads()),
        groups(job.model().n_kv_groups()),
        k(groups * job.model().d_k()),
        v(groups * job.model().d_v()),
        blocks(context < job.nsa().l() ? 0 : (context - job.nsa().l()) / job.nsa().d() + 1),
        turns(LayersOf(job.nsa())) {}

  // Rows of a cache that keeps `keep` of them: on a GPU there is room for a copy.
  int64_t Cached(int64_t keep) const {
    keep = std::min(context, keep);
    return std::max<int64_t>(1, std::min(context, (gpu ? 2 : 1) * keep + kRows));
  }

  const v1::JobSpec& spec;
  const int64_t context;
  const bool gpu;
  const int64_t rows;
  const int64_t heads, groups;
  const int64_t k, v;                       // width of a row of keys and of values
  const int64_t blocks;                     // compression blocks of the whole context
  const std::vector<LayerAttention> turns;  // the attention of the layers in turn

  // The window of a layer.
  int64_t WindowOf(const LayerAttention& layer) const {
    return layer.full ? context : spec.nsa().w();
  }
};

// The keys and values that a layer keeps.
Parts LayerCacheOf(const Decoding& d, const LayerAttention& layer) {
  Parts parts;
  const BranchSet& branches = layer.branches;
  const int64_t both = d.k + d.v;
  if (branches[kSel]) parts.elements += std::max<int64_t>(1, d.context) * both;
  if (branches[kWin]) parts.elements += d.Cached(d.WindowOf(layer) - 1) * both;
  if (branches[kCmp]) parts.elements += d.Cached(d.spec.nsa().l() - 1) * both;
  const int64_t blocks = std::max<int64_t>(1, d.blocks);
  if (branches[kCmp] || branches[kSel]) parts.elements += blocks * d.k;
  if (branches[kCmp]) parts.elements += blocks * d.v;
  return parts;
}

// Scratch memory of a layer's attention on a GPU (kernels/nsa/decode/attend_rows.h), in words.
int64_t AttentionScratch(const Decoding& d, const LayerAttention& layer, int64_t rows) {
  const v1::NsaSpec& nsa = d.spec.nsa();
  const BranchSet& branches = layer.branches;
  const auto parts = [](int64_t keys) { return (keys + kRows - 1) / kRows; };
  const int64_t blocks = branches[kCmp] || branches[kSel] ? d.blocks : 0;
  int64_t count = parts(blocks);
  if (branches[kWin]) count += parts(std::min(d.WindowOf(layer), d.context));
  if (branches[kSel]) {
    const int64_t seen = (d.context - 1) / nsa.l_sel() + 1;
    count += parts(std::min<int64_t>(nsa.n_sel(), seen) * nsa.l_sel());
  }
  return (rows * d.heads + 1) * (blocks + count * (2 + d.spec.model().d_v()));
}

// Of `rows` tokens that are being computed, in a model with layers that have these branches.
Parts Workspace(const Decoding& d, const BranchSet& branches, int64_t rows) {
  const v1::ModelSpec& model = d.spec.model();
  const v1::NsaSpec& nsa = d.spec.nsa();
  const int64_t q = d.heads * model.d_k(), o = d.heads * model.d_v();
  const int64_t count = CountOf(branches);
  const int64_t hidden = MlpInputsOf(model) + (IsSwiglu(model) ? MlpUnitsOf(model) : 0);
  Parts parts;
  parts.elements = rows * (3 * int64_t{model.dim()} + hidden + 3 * q + count * (d.k + d.v) + o);
  parts.elements += (d.gpu ? rows : 1) * VocabOf(d.spec);
  if (branches[kSel]) parts.words += rows * d.groups * nsa.n_sel();
  if (branches[kCmp] && nsa.phi() == v1::PHI_MLP) {
    parts.elements += ((kRows - 1) / nsa.d() + 1) * (d.k + d.v);
  }
  if (d.gpu) {
    int64_t scratch = 0;
    for (const LayerAttention& layer : d.turns) {
      scratch = std::max(scratch, AttentionScratch(d, layer, rows));
    }
    parts.words += scratch;
    return parts;
  }
  parts.elements += count * rows * o;
  parts.words += rows * (count * d.heads + d.groups * kBranches);
  if (branches[kSel]) {
    parts.elements +=
        std::min<int64_t>(d.context, int64_t{nsa.n_sel()} * nsa.l_sel()) * (d.k + d.v);
  }
  return parts;
}

int64_t PromptBytes(const v1::JobSpec& spec) {
  int64_t most = 0;
  for (const std::string& prompt : spec.sample().prompts()) {
    most = std::max(most, static_cast<int64_t>(prompt.size()));
  }
  return most;
}

}  // namespace

int64_t SampleContext(const v1::JobSpec& spec) {
  if (spec.sample().prompts().empty()) return 0;
  const int64_t drawn = std::max<int64_t>(1, spec.sample().tokens());
  return std::min<int64_t>(spec.train().seq_len(), 1 + PromptBytes(spec) + drawn);
}

int64_t SampleBytes(const v1::JobSpec& spec) {
  const int64_t context = SampleContext(spec);
  if (context == 0) return 0;
  const Decoding decoding(spec, context);
  const std::vector<LayerAttention>& turns = decoding.turns;
  BranchSet any = {};
  Parts sum;
  for (int64_t layer = 0; layer < spec.model().n_layers(); ++layer) {
    const LayerAttention& attention = turns[static_cast<size_t>(layer) % turns.size()];
    for (int c = 0; c < kBranches; ++c) any[c] = any[c] || attention.branches[c];
    sum.elements += LayerCacheOf(decoding, attention).elements;
  }
  const auto add_workspace = [&](int64_t rows) {
    const Parts work = Workspace(decoding, any, rows);
    sum.elements += work.elements;
    sum.words += work.words;
  };
  add_workspace(decoding.rows);
  if (decoding.gpu) add_workspace(1);                            // of single tokens
  return sum.elements * (decoding.gpu ? 2 : 4) + sum.words * 4;  // bf16, fp32
}

double SampleSeconds(const v1::JobSpec& spec) {
  double tokens = 0;
  for (const std::string& prompt : spec.sample().prompts()) {
    tokens += static_cast<double>(prompt.size()) / 2 + spec.sample().tokens();
  }
  const auto parameters = static_cast<double>(ParameterCount(spec));
  constexpr double kGpuLayer = 33e-6, kGpuBytes = 1e12, kCpuBytes = 10e9;
  return OnGpu(spec) ? tokens * (spec.model().n_layers() * kGpuLayer + 2 * parameters / kGpuBytes)
                     : tokens * 4 * parameters / kCpuBytes;
}

}  // namespace nsa
