#include "worker/train/decode/choose_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/nsa/visibility.h"

namespace nsa::train {
namespace {

constexpr float kFirstMax = -1e30f;  // finite, so that rows of −inf give 0 and not NaN

float LogSumExp(std::span<const float> s) {
  float max = kFirstMax, sum = 0;
  for (const float x : s) max = std::max(max, x);
  for (const float x : s) sum += std::exp(x - max);
  return max + std::log(sum);
}

}  // namespace

void BlockChooser::Choose(const ChoiceRow& row, std::span<int32_t> slots) {
  const auto n = static_cast<int32_t>(slots.size());
  const KeyRange candidates = CandidateBlocks(shape_, row.t, row.first);
  std::fill(slots.begin(), slots.end(), -1);
  if (candidates.end - candidates.begin <= n) {
    std::iota(slots.begin(), slots.begin() + (candidates.end - candidates.begin), candidates.begin);
    return;
  }
  Score(row);
  const int32_t current = candidates.end - 1;
  others_.resize(current - 2 - candidates.begin);
  std::iota(others_.begin(), others_.end(), candidates.begin + 1);
  const auto key = [this](int32_t id) {
    return std::isnan(scores_[id]) ? -std::numeric_limits<float>::infinity() : scores_[id];
  };
  // Higher score first, the lower id on equal scores, NaN last.
  std::nth_element(
      others_.begin(), others_.begin() + (n - 3), others_.end(),
      [&](int32_t a, int32_t b) { return key(a) != key(b) ? key(a) > key(b) : a < b; });
  slots[0] = candidates.begin;
  slots[1] = current - 1;
  slots[2] = current;
  std::copy_n(others_.begin(), n - 3, slots.begin() + 3);
  std::sort(slots.begin(), slots.end());
}

// scores_[j] ← Σ_i p_i · |compression block i ∩ selection block j| / l
void BlockChooser::Score(const ChoiceRow& row) {
  const KeyRange visible = BranchRule<kCmp>::Keys(shape_, row.t, row.first);
  scores_.assign(row.t / shape_.l_sel + 1, 0.0f);
  if (visible.end <= visible.begin) return;
  p_.assign(visible.end - visible.begin, 0.0f);
  for (int32_t a = 0; a < shape_.heads_per_group(); ++a) {
    AddHead(row, a, visible.begin, visible.end);
  }
  for (int32_t i = visible.begin; i < visible.end; ++i) {
    const int32_t begin = i * shape_.d, end = begin + shape_.l;
    for (int32_t j = begin / shape_.l_sel; j * shape_.l_sel < end; ++j) {
      const int32_t overlap =
          std::min(end, (j + 1) * shape_.l_sel) - std::max(begin, j * shape_.l_sel);
      scores_[j] +=
          p_[i - visible.begin] * static_cast<float>(overlap) / static_cast<float>(shape_.l);
    }
  }
}

// p_ ← p_ + softmax of head `a` over blocks begin … end − 1.
void BlockChooser::AddHead(const ChoiceRow& row, int32_t a, int32_t begin, int32_t end) {
  const int32_t dk = shape_.d_k;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dk));
  const float* q = row.q + int64_t{a} * dk;
  s_.resize(end - begin);
  for (int32_t i = begin; i < end; ++i) {
    const float* k = row.k + i * row.k_step;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int32_t c = 0; c < dk; ++c) sum += q[c] * k[c];
    s_[i - begin] = sum * scale;
  }
  const float lse = row.lse != nullptr ? row.lse[a] : LogSumExp(s_);
  for (size_t i = 0; i < s_.size(); ++i) p_[i] += std::exp(s_[i] - lse);
}

}  // namespace nsa::train
