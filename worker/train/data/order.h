// The order of the rows in an epoch: a permutation that is computed, not stored.
//
// It is a four-round Feistel network over the smallest even number of bits that can count `rows`
// values. The network is applied again until its output is below `rows`: fewer than four times on
// average. It is a bijection for every key, so each epoch contains each row exactly once.
#pragma once

#include <cstdint>

namespace nsa::train {

class RowOrder {
 public:
  // rows ≥ 1.
  RowOrder(int64_t seed, int64_t rows);

  // The row at position `sequence`, in [0, rows), of epoch `epoch`.
  int64_t Row(int64_t epoch, int64_t sequence) const;

  int64_t rows() const { return rows_; }

 private:
  const uint64_t seed_;
  const int64_t rows_;
  int half_bits_ = 1;
};

// How many tokens later the rows of an epoch are cut than those of epoch 0: 0 in epoch 0, otherwise
// a random number in [0, seq_len) that depends only on (seed, epoch). So a token does not have the
// same context in every epoch.
int64_t ShiftOfEpoch(int64_t seed, int64_t epoch, int32_t seq_len);

}  // namespace nsa::train
