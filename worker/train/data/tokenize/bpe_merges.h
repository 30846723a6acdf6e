// The merges of a byte-pair encoding, applied to one piece of text.
//
// Of all adjacent pairs of tokens, the one with the lowest rank is replaced by its merged token,
// the leftmost of equal ones, until no pair has a rank. Short pieces are searched; in long ones the
// pairs wait in a heap ordered by (rank, position), so n tokens take O(n log n) time and about 40 n
// bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "worker/train/data/read/byte_stream.h"

namespace nsa::train {

class BpeMerges {
 public:
  // Longer pieces must be divided by the caller. Tokens.
  static constexpr size_t kLongestPiece = size_t{1} << 30;

  // Adds the merge of `left` and `right` into `merged`. Its rank is the number of merges before it.
  // A pair that has a rank keeps it.
  void Add(int32_t left, int32_t right, int32_t merged);

  // Applies the merges to `tokens`, one per byte of a piece, of which there are at most
  // kLongestPiece. `progress` may be null; otherwise its bytes grow by one per token of the piece,
  // and Cancelled is returned soon after it is cancelled.
  absl::Status Apply(std::vector<int32_t>* tokens, ReadProgress* progress) const;

 private:
  struct PairHash {
    size_t operator()(const std::pair<int32_t, int32_t>& pair) const {
      return std::hash<uint64_t>()((uint64_t(pair.first) << 32) | uint64_t(pair.second));
    }
  };
  class Heap;

  // The rank of a pair; kNoRank if it has none.
  uint32_t RankOf(int32_t left, int32_t right) const;
  void ApplyBySearch(std::vector<int32_t>* tokens) const;

  std::unordered_map<std::pair<int32_t, int32_t>, uint32_t, PairHash> ranks_;
  std::vector<int32_t> merged_;  // by rank
};

}  // namespace nsa::train
