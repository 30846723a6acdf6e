// The merges of a byte-pair encoding, applied to one piece of text.
//
// Of all adjacent pairs of tokens, the one with the lowest rank is replaced by its merged token,
// the leftmost of equal ones, until no pair has a rank. Short pieces are searched; in long ones the
// pairs wait in a heap ordered by (rank, position), so n tokens take O(n log n) time and about 40 n
// bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "worker/train/data/read/byte_stream.h"

namespace nsa::train {

class BpeMerges {
 public:
  // Longer pieces must be divided by the caller. Tokens.
  static constexpr size_t kLongestPiece = size_t{1} << 30;

  // Adds the merge of `left` and `right` into `merged`. Its rank is the number of merges before it.
  // False if the pair has a rank, which it keeps.
  bool Add(int32_t left, int32_t right, int32_t merged);

  // Applies the merges to `tokens`, one per byte of a piece, at most
  // kLongestPiece. `progress` may be null; otherwise its bytes grow by one per token of the piece,
  // and Cancelled is returned soon after it is cancelled.
  absl::Status Apply(std::vector<int32_t>* tokens, ReadProgress* progress) const;

 private:
  static constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();
  struct Slot {
    uint64_t pair = 0;
    uint32_t rank = kNoRank;  // kNoRank: the slot is free
  };
  class Heap;

  // The rank of a pair; kNoRank if it has none.
  uint32_t RankOf(int32_t left, int32_t right) const {
    return slots_.empty() ? kNoRank : slots_[PlaceOf(PairOf(left, right))].rank;
  }
  static uint64_t PairOf(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  // The slot of a pair, or the free one where it belongs.
  size_t PlaceOf(uint64_t pair) const {
    size_t at = (pair * 0x9e3779b97f4a7c15) >> shift_;
    while (slots_[at].rank != kNoRank && slots_[at].pair != pair) {
      at = (at + 1) & (slots_.size() - 1);
    }
    return at;
  }
  void Grow();
  void ApplyBySearch(std::vector<int32_t>* tokens) const;

  std::vector<Slot> slots_;      // of all pairs: a power of two, at most half of them used
  int shift_ = 64;               // leaves the bits of a slot's number
  std::vector<int32_t> merged_;  // by rank
};

}  // namespace nsa::train
