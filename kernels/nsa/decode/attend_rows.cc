#include "kernels/nsa/decode/attend_rows.h"

#include <algorithm>

#include "common/nsa/visibility.h"

namespace nsa {

CachedParts CachedParts::Of(const NsaLayerConfig& config, int32_t tokens) {
  const NsaShape& s = config.shape;
  const int32_t last = tokens - 1;
  const auto parts = [](int32_t keys) { return (keys + kKeys - 1) / kKeys; };
  CachedParts result;
  if (config.has(kCmp) || config.has(kSel)) {
    result.blocks = BranchRule<kCmp>::Keys(s, last, 0).end;
    result.count[kCmp] = parts(result.blocks);
  }
  if (config.has(kWin)) result.count[kWin] = parts(std::min(s.window, tokens));
  if (config.has(kSel)) {
    result.count[kSel] = parts(std::min(s.n_sel, last / s.l_sel + 1) * s.l_sel);
  }
  return result;
}

int64_t AttendCachedScratchBytes(const NsaLayerConfig& config, int64_t rows, int32_t context) {
  const CachedParts parts = CachedParts::Of(config, context);
  // Of every head: the scores of the blocks, and of each part two statistics and an output.
  const int64_t numbers =
      (rows * config.shape.n_heads + 1) * (parts.blocks + parts.total() * (2 + config.shape.d_v));
  return numbers * static_cast<int64_t>(sizeof(float));
}

}  // namespace nsa
