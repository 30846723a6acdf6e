#include "kernels/nsa/decode/attend_rows.h"

#include <algorithm>

namespace nsa {

int64_t AttendCachedScratchBytes(const NsaLayerConfig& config, int64_t rows, int64_t context) {
  constexpr int64_t kPart = 256;  // keys
  const NsaShape& s = config.shape;
  const auto parts = [](int64_t keys) { return (keys + kPart - 1) / kPart; };
  const bool scored = config.has(kCmp) || config.has(kSel);
  const int64_t blocks = !scored || context < s.l ? 0 : (context - s.l) / s.d + 1;
  int64_t all = parts(blocks);
  if (config.has(kWin)) all += parts(std::min<int64_t>(s.window, context));
  if (config.has(kSel)) all += parts(int64_t{s.n_sel} * s.l_sel);
  // Of every head: the scores of the blocks, and of each part two statistics and an output.
  const int64_t numbers = (rows * s.n_heads + 1) * (blocks + all * (2 + s.d_v));
  return numbers * static_cast<int64_t>(sizeof(float));
}

}  // namespace nsa
