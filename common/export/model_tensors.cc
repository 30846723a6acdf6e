#include "common/export/model_tensors.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/estimate/estimate.h"
#include "common/estimate/layers.h"
#include "common/estimate/memory/logits.h"
#include "common/estimate/model_options.h"
#include "common/nsa/branch.h"

namespace nsa {
namespace {

class Lister {
 public:
  explicit Lister(const v1::JobSpec& spec) : spec_(spec), turns_(LayersOf(spec.nsa())) {}

  std::vector<ModelTensor> List() && {
    const v1::ModelSpec& model = spec_.model();
    const int64_t dim = model.dim(), hidden = MlpUnitsOf(model), vocab = VocabOf(spec_);
    Add("embed.weight", {vocab, dim});
    if (model.tie_embeddings()) tensors_.back().gap = (PaddedVocab(vocab) - vocab) * dim;
    for (int layer = 0; layer < model.n_layers(); ++layer) {
      prefix_ = absl::StrCat("blocks.", layer, ".");
      branches_ = turns_[static_cast<size_t>(layer) % turns_.size()].branches;
      Add("norm1.weight", {dim});
      Attention();
      Add("norm2.weight", {dim});
      if (IsSwiglu(model)) Add("mlp.gate.weight", {hidden, dim});
      Add("mlp.fc1.weight", {hidden, dim});
      Add("mlp.fc2.weight", {dim, hidden});
    }
    prefix_.clear();
    Add("norm_f.weight", {dim});
    if (!model.tie_embeddings()) Add("lm_head.weight", {vocab, dim});
    return std::move(tensors_);
  }

 private:
  void Attention() {
    const v1::ModelSpec& model = spec_.model();
    const int64_t dim = model.dim(), d_k = model.d_k(), d_v = model.d_v();
    Add("attn.W_Q.weight", {model.n_heads() * d_k, dim});
    for (const Branch branch : {kSel, kWin, kCmp}) {
      if (!branches_[branch]) continue;
      Add(absl::StrCat("attn.W_K_", kBranchNames[branch], ".weight"),
          {model.n_kv_groups() * d_k, dim});
      Add(absl::StrCat("attn.W_V_", kBranchNames[branch], ".weight"),
          {model.n_kv_groups() * d_v, dim});
    }
    Add("attn.out.weight", {dim, model.n_heads() * d_v});
    if (model.qkv_bias()) Biases();
    if (model.qk_norm_weights()) {
      Add("attn.q_norm.weight", {d_k});
      Add("attn.k_norm.weight", {d_k});
    }
    const int64_t n_branches = branches_[kCmp] + branches_[kSel] + branches_[kWin];
    if (n_branches > 1) {
      Add("attn.gate.fc1.weight", {d_k / 2, d_k});
      Add("attn.gate.fc1.bias", {d_k / 2});
      Add("attn.gate.fc2.weight", {n_branches, d_k / 2});
      Add("attn.gate.fc2.bias", {n_branches});
    }
    if (branches_[kCmp] && spec_.nsa().phi() == v1::PHI_MLP) {
      Phi("attn.phi_k.", d_k);
      Phi("attn.phi_v.", d_v);
    }
  }

  void Biases() {
    const v1::ModelSpec& model = spec_.model();
    Add("attn.W_Q.bias", {int64_t{model.n_heads()} * model.d_k()});
    for (const Branch branch : {kSel, kWin, kCmp}) {
      if (!branches_[branch]) continue;
      Add(absl::StrCat("attn.W_K_", kBranchNames[branch], ".bias"),
          {int64_t{model.n_kv_groups()} * model.d_k()});
      Add(absl::StrCat("attn.W_V_", kBranchNames[branch], ".bias"),
          {int64_t{model.n_kv_groups()} * model.d_v()});
    }
  }

  void Phi(const std::string& name, int64_t width) {
    const int64_t l = spec_.nsa().l();
    Add(name + "position", {l, width});
    Add(name + "fc1.weight", {width, l * width});
    Add(name + "fc1.bias", {width});
    Add(name + "fc2.weight", {width, width});
    Add(name + "fc2.bias", {width});
  }

  void Add(const std::string& name, std::vector<int64_t> shape) {
    ModelTensor tensor{.name = prefix_ + name, .shape = std::move(shape), .size = 1};
    for (const int64_t length : tensor.shape) tensor.size *= length;
    tensors_.push_back(std::move(tensor));
  }

  const v1::JobSpec& spec_;
  const std::vector<LayerAttention> turns_;  // of the layers in turn
  BranchSet branches_ = {};                  // of this layer
  std::string prefix_;
  std::vector<ModelTensor> tensors_;
};

}  // namespace

std::vector<ModelTensor> ModelTensors(const v1::JobSpec& spec) { return Lister(spec).List(); }

int64_t FlatElements(const std::vector<ModelTensor>& tensors) {
  int64_t elements = 0;
  for (const ModelTensor& tensor : tensors) elements += (tensor.size + tensor.gap + 15) / 16 * 16;
  return elements;
}

}  // namespace nsa
