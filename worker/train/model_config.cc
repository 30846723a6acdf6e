#include "worker/train/model_config.h"

#include "common/estimate.h"

namespace nsa {
namespace {

std::array<bool, kBranches> BranchesOf(const v1::NsaSpec& spec) {
  if (spec.branches().empty()) return {true, true, true};
  std::array<bool, kBranches> branches = {false, false, false};
  for (const int branch : spec.branches()) {
    if (branch == v1::BRANCH_CMP) branches[kCmp] = true;
    if (branch == v1::BRANCH_SEL) branches[kSel] = true;
    if (branch == v1::BRANCH_WIN) branches[kWin] = true;
  }
  return branches;
}

}  // namespace

ModelConfig ModelConfigOf(const v1::JobSpec& spec) {
  ModelConfig config;
  config.attention = {
      .shape = ShapeOf(spec),
      .dtype = DType::kF32,
      .branches = BranchesOf(spec.nsa()),
      .phi = spec.nsa().phi() == v1::PHI_MLP ? Phi::kMlp : Phi::kAvg,
      .gate = spec.nsa().gate() == v1::GATE_SIGMOID ? GateKind::kSigmoid : GateKind::kSoftmax,
      .rope_base = static_cast<float>(spec.model().rope_base()),
      .rope_scale = static_cast<float>(spec.model().rope_scale())};
  config.dim = spec.model().dim();
  config.n_layers = spec.model().n_layers();
  config.hidden = spec.model().mlp_ratio() * spec.model().dim();
  config.vocab = VocabOf(spec);
  config.gradient_checkpointing = spec.runtime().gradient_checkpointing();
  return config;
}

const char* BranchName(Branch branch) {
  constexpr std::array<const char*, kBranches> kNames = {"cmp", "sel", "win"};
  return kNames[branch];
}

}  // namespace nsa
