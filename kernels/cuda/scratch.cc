#include <algorithm>

#include "common/attention_scratch.h"
#include "kernels/cuda/kernels.h"

namespace nsa::cuda {

AttentionScratch PlanAttentionScratch(const AttentionConfig& config) {
  const LayerScratch layer = PlanLayerScratch(config.shape, config.has(kCmp), config.has(kSel),
                                              config.has(kWin), config.has_phi());
  AttentionScratch scratch;
  scratch.branch = {layer.cmp, layer.sel, layer.win};
  scratch.phi = layer.phi;
  scratch.bytes = std::max(layer.bytes, GateWorkspaceBytes(config.shape));
  return scratch;
}

}  // namespace nsa::cuda
