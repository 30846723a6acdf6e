#include "worker/train/model/model_config.h"

namespace nsa {

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
  config.recompute = RecomputeOf(spec);
  return config;
}

}  // namespace nsa
