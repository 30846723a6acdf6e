// How many keys a query reads, on average over the positions of a sequence: the formula that the
// kernels' counters are compared with.
#pragma once

#include "common/nsa_shape.h"

namespace nsa {

struct AttentionCounts {
  double cmp = 0;  // compressed keys
  double sel = 0;  // tokens of selected blocks
  double win = 0;  // tokens of the window
};

// Exact means over t = 0 … S−1 for a shape that Validate() accepts; O(S).
AttentionCounts CountAttention(const NsaShape& shape);

}  // namespace nsa
