// Which keys the query at t may see in each branch. `first` is the first token of t's document, 0
// without documents. Internal to kernels/nsa.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "common/nsa_shape.h"
#include "kernels/nsa/attend.h"

namespace nsa {

// Compressed blocks i with first ≤ i·d and i·d + l − 1 ≤ t; may be empty (end ≤ begin).
inline KeyRange VisibleBlocks(const NsaShape& shape, int32_t t, int32_t first) {
  return {(first + shape.d - 1) / shape.d, shape.visible_cmp_blocks(t)};
}

// The window; never empty.
inline KeyRange Window(const NsaShape& shape, int32_t t, int32_t first) {
  return {std::max(first, shape.window_start(t)), t + 1};
}

// Tokens of selection block j that t sees; may be empty.
inline KeyRange BlockTokens(const NsaShape& shape, int32_t block, int32_t t, int32_t first) {
  return {std::max(first, block * shape.l_sel), std::min(t + 1, (block + 1) * shape.l_sel)};
}

// Appends a range unless it is empty; one that touches the last is merged with it.
inline void PushRange(KeyRange range, std::vector<KeyRange>* ranges) {
  if (range.end <= range.begin) return;
  if (!ranges->empty() && ranges->back().end == range.begin) {
    ranges->back().end = range.end;
  } else {
    ranges->push_back(range);
  }
}

// G · Σ_{b,t} keys(t, first token of t's document).
template <class Keys>
int64_t SumOverTokens(const NsaShape& shape, std::span<const int32_t> doc_start, Keys keys) {
  int64_t sum = 0;
  const int64_t rows = doc_start.empty() ? shape.seq_len : static_cast<int64_t>(doc_start.size());
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t t = static_cast<int32_t>(row % shape.seq_len);
    sum += keys(t, doc_start.empty() ? 0 : doc_start[row]);
  }
  return sum * shape.n_kv_groups * (doc_start.empty() ? shape.batch : 1);
}

}  // namespace nsa
