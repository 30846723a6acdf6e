#include "common/estimate/sizes.h"

#include "common/estimate/layers.h"
#include "common/estimate/optimizer_traits.h"

namespace nsa {

std::vector<LayerKind> KindsOf(const v1::JobSpec& spec) {
  const std::vector<LayerAttention> turns = LayersOf(spec.nsa());
  const auto period = static_cast<int64_t>(turns.size());
  std::vector<LayerKind> kinds;
  for (int64_t i = 0; i < period; ++i) {
    const int64_t layers = (spec.model().n_layers() - i + period - 1) / period;
    kinds.push_back({Sizes(spec, turns[i]), layers});
  }
  return kinds;
}

bool IsBf16(const v1::JobSpec& spec) {
  if (spec.runtime().precision() != v1::PRECISION_UNSPECIFIED) {
    return spec.runtime().precision() == v1::PRECISION_BF16;
  }
  return spec.runtime().device() != v1::DEVICE_CPU;
}

std::map<MuonShape, int64_t> MuonMatrices(const v1::JobSpec& spec,
                                          const std::vector<LayerKind>& kinds) {
  std::map<MuonShape, int64_t> matrices;
  if (!TraitsOf(spec.train()).whole_matrices) return matrices;
  for (const auto& [s, layers] : kinds) {
    matrices[MuonShape::Of(s.q, s.dim)] += layers;
    matrices[MuonShape::Of(s.k, s.dim)] += layers * s.n_branches;
    matrices[MuonShape::Of(s.v, s.dim)] += layers * s.n_branches;
    matrices[MuonShape::Of(s.o, s.dim)] += layers;
    matrices[MuonShape::Of(s.hidden, s.dim)] += (1 + s.mlp_inputs / s.hidden) * layers;
  }
  return matrices;
}

}  // namespace nsa
