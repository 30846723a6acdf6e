#include <algorithm>

#include "kernels/cuda/kernels.h"

namespace nsa::cuda {

int64_t AttentionScratchBytes(const AttentionConfig& config) {
  const NsaShape& shape = config.shape;
  int64_t most = GateWorkspaceBytes(shape);
  if (config.has(kCmp)) most = std::max(most, CompressedBackwardWorkspaceBytes(shape));
  if (config.has(kSel)) most = std::max(most, SelectedBackwardWorkspaceBytes(shape));
  if (config.has(kWin)) most = std::max(most, WindowBackwardWorkspaceBytes(shape));
  for (const int32_t width : {shape.d_k, shape.d_v}) {
    most = std::max(most, CompressWorkspaceBytes(shape, width, config.phi));
  }
  return most;
}

}  // namespace nsa::cuda
