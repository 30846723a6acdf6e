#include "worker/train/model/shares.h"

#include <algorithm>

#include "common/estimate/optimizer_traits.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {
namespace {

// As tensors are aligned in the arena.
constexpr int64_t kMultiple = 16;

// The matrix of Muon that `cut` is inside of; empty if it is inside none.
Slice MatrixAround(const ParameterLayout& layout, int64_t cut) {
  for (const ParameterInfo& tensor : layout.tensors()) {
    const Slice place = {tensor.offset, tensor.offset + tensor.size};
    if (tensor.hidden && place.begin < cut && cut < place.end) return place;
  }
  return {};
}

}  // namespace

Shares::Shares(const ParameterLayout& layout, const v1::TrainSpec& train, int32_t ranks) {
  const bool whole_matrices = TraitsOf(train).whole_matrices;
  cuts_.push_back(0);
  for (int32_t rank = 1; rank < ranks; ++rank) {
    const auto even = static_cast<int64_t>(static_cast<__int128>(layout.size()) * rank / ranks);
    int64_t cut = even / kMultiple * kMultiple;
    const Slice matrix = whole_matrices ? MatrixAround(layout, cut) : Slice{};
    // The sizes of Muon's matrices need not be multiples of 16: the gap behind one belongs to it.
    const int64_t behind = (matrix.end + kMultiple - 1) / kMultiple * kMultiple;
    if (!matrix.empty()) cut = cut - matrix.begin < behind - cut ? matrix.begin : behind;
    cuts_.push_back(std::max(cut, cuts_.back()));
  }
  cuts_.push_back(layout.size());
}

std::vector<int64_t> Shares::CutsOf(const Slice& part) const {
  std::vector<int64_t> cuts;
  cuts.reserve(cuts_.size());
  for (const int64_t cut : cuts_)
    cuts.push_back(std::clamp(cut, part.begin, part.end) - part.begin);
  return cuts;
}

}  // namespace nsa::train
