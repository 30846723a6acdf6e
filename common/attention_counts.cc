#include "common/attention_counts.h"

#include <algorithm>

namespace nsa {

AttentionCounts CountAttention(const NsaShape& shape) {
  int64_t cmp = 0;
  int64_t sel = 0;
  int64_t win = 0;
  for (int32_t t = 0; t < shape.seq_len; ++t) {
    cmp += shape.visible_cmp_blocks(t);
    // All chosen blocks are whole but t's own, which ends at t.
    const int64_t chosen = std::min(shape.n_sel, shape.visible_sel_blocks(t));
    sel += (chosen - 1) * shape.l_sel + t % shape.l_sel + 1;
    win += std::min(shape.window, t + 1);
  }
  const double rows = shape.seq_len;
  return {cmp / rows, sel / rows, win / rows};
}

}  // namespace nsa
