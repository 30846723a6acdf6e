#include <algorithm>

#include "kernels/cuda/kernels.h"

namespace nsa::cuda {

AttentionScratch PlanAttentionScratch(const AttentionConfig& config) {
  constexpr int64_t kAlignment = 256;
  const NsaShape& shape = config.shape;
  AttentionScratch scratch;
  const auto take = [&](int64_t bytes) {
    const int64_t begin = scratch.bytes;
    scratch.bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  };
  int64_t phi = 0;
  for (const int32_t width : {shape.d_k, shape.d_v}) {
    phi = std::max(phi, CompressWorkspaceBytes(shape, width, config.phi));
  }
  if (config.has(kCmp)) scratch.branch[kCmp] = take(CompressedBackwardWorkspaceBytes(shape));
  if (config.has(kSel)) scratch.branch[kSel] = take(SelectedBackwardWorkspaceBytes(shape));
  if (config.has(kWin)) scratch.branch[kWin] = take(WindowBackwardWorkspaceBytes(shape));
  scratch.phi = take(phi);
  scratch.bytes = std::max(scratch.bytes, GateWorkspaceBytes(shape));
  return scratch;
}

}  // namespace nsa::cuda
