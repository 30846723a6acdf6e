// How many logits are in memory at a time.
#pragma once

#include <algorithm>
#include <cstdint>

namespace nsa {

// Columns of the logits on a GPU: the vocabulary rounded up to a multiple of 128. A matrix product
// whose rows begin at addresses that are no multiple of 16 bytes takes several times as long.
constexpr int64_t PaddedVocab(int64_t vocab) { return (vocab + 127) / 128 * 128; }

// Rows of logits that a GPU holds at a time, of `rows` rows with `columns` columns: all, or where
// they are more than 2^29 numbers (1 GiB in bf16) pieces of equal size, a multiple of 128 rows.
// Every piece reads and writes the gradient of the head's weights once, so that small pieces cost
// time.
constexpr int64_t LogitRows(int64_t rows, int64_t columns) {
  constexpr int64_t kMost = int64_t{1} << 29;
  const int64_t most = std::max<int64_t>(128, kMost / columns / 128 * 128);
  if (rows <= most) return rows;
  const int64_t pieces = (rows + most - 1) / most;
  return ((rows + pieces - 1) / pieces + 127) / 128 * 128;
}

}  // namespace nsa
