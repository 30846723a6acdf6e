// The selection blocks of one token and group, by the rules of kernels/nsa/select/select_blocks.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/nsa/nsa_shape.h"

namespace nsa::train {

// Where a token chooses its blocks.
struct ChoiceRow {
  int32_t t = 0;             // its position
  int32_t first = 0;         // first token of its document
  const float* q = nullptr;  // [h, dk], the group's queries, rotated
  const float* k = nullptr;  // compressed keys of the group: block i at k + i · k_step
  int64_t k_step = 0;
  const float* lse = nullptr;  // optional [h], of the compressed attention; else computed here
};

// Holds scratch memory. One thread at a time.
class BlockChooser {
 public:
  explicit BlockChooser(const NsaShape& shape) : shape_(shape) {}

  // Writes n block ids: ascending, then −1 for empty slots.
  void Choose(const ChoiceRow& row, std::span<int32_t> slots);

 private:
  void Score(const ChoiceRow& row);
  void AddHead(const ChoiceRow& row, int32_t a, int32_t begin, int32_t end);

  const NsaShape shape_;
  std::vector<float> s_;       // scaled products of one head with the visible blocks
  std::vector<float> p_;       // [visible blocks], summed over the heads
  std::vector<float> scores_;  // [candidate blocks and earlier ones]
  std::vector<int32_t> others_;
};

}  // namespace nsa::train
