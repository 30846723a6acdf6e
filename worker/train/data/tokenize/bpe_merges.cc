#include "worker/train/data/tokenize/bpe_merges.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <queue>
#include <utility>

#include "common/base/status.h"
#include "worker/train/data/tokenize/tokenizer.h"

namespace nsa::train {
namespace {

constexpr size_t kSearched = 48;         // pieces of up to so many tokens are searched
constexpr int64_t kReportTokens = 4096;  // tokens

}  // namespace

// The tokens of a piece as a linked list, and the pairs that have a rank. A pair is named by the
// position of its first token.
class BpeMerges::Heap {
 public:
  Heap(const BpeMerges& merges, std::vector<int32_t>* tokens, ReadProgress* progress)
      : merges_(merges),
        tokens_(*tokens),
        size_(static_cast<uint32_t>(tokens->size())),
        previous_(size_),
        next_(size_),
        rank_(size_, kNoRank),
        progress_(progress) {}

  absl::Status Apply() {
    for (uint32_t at = 0; at < size_; ++at) {
      previous_[at] = at - 1;  // that of the first is never used
      next_[at] = at + 1;
    }
    for (uint32_t at = 0; at < size_; ++at) {
      if (at % kReportTokens == 0) NSA_RETURN_IF_ERROR(Report(0));
      Rank(at);
    }
    for (int64_t popped = 1; !queue_.empty(); ++popped) {
      const uint64_t best = queue_.top();
      queue_.pop();
      const auto at = static_cast<uint32_t>(best);
      if (rank_[at] == best >> 32) MergeAt(at);
      if (popped % kReportTokens == 0) NSA_RETURN_IF_ERROR(Report(merged_ - reported_));
    }
    Compact();
    return Report(size_ - reported_);
  }

 private:
  // Gives the pair at `at` its rank and puts it into the queue.
  void Rank(uint32_t at) {
    const uint32_t right = next_[at];
    rank_[at] = right < size_ ? merges_.RankOf(tokens_[at], tokens_[right]) : kNoRank;
    if (rank_[at] != kNoRank) queue_.push(uint64_t{rank_[at]} << 32 | at);
  }

  void MergeAt(uint32_t at) {
    const uint32_t right = next_[at];
    tokens_[at] = merges_.merged_[rank_[at]];
    rank_[right] = kNoRank;  // what is in the queue for it no longer counts
    next_[at] = next_[right];
    if (next_[at] < size_) previous_[next_[at]] = at;
    Rank(at);
    if (at > 0) Rank(previous_[at]);
    ++merged_;
  }

  // Leaves only the tokens of the list.
  void Compact() {
    size_t kept = 0;
    for (uint32_t at = 0; at < size_; at = next_[at]) tokens_[kept++] = tokens_[at];
    tokens_.resize(kept);
  }

  absl::Status Report(int64_t bytes) {
    if (progress_ == nullptr) return absl::OkStatus();
    progress_->bytes += bytes;
    reported_ += bytes;
    return progress_->cancelled ? EncodingCancelled() : absl::OkStatus();
  }

  const BpeMerges& merges_;
  std::vector<int32_t>& tokens_;
  const uint32_t size_;
  std::vector<uint32_t> previous_, next_;  // positions; size_ at the end
  std::vector<uint32_t> rank_;             // of the pair at a position, or kNoRank
  // (rank, position), the lowest first. An entry counts if it is still the rank of its position.
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> queue_;
  ReadProgress* const progress_;
  int64_t merged_ = 0;
  int64_t reported_ = 0;
};

bool BpeMerges::Add(int32_t left, int32_t right, int32_t merged) {
  if (2 * (merged_.size() + 1) > slots_.size()) Grow();
  const uint64_t pair = PairOf(left, right);
  Slot& slot = slots_[PlaceOf(pair)];
  if (slot.rank != kNoRank) return false;
  slot = {.pair = pair, .rank = static_cast<uint32_t>(merged_.size())};
  merged_.push_back(merged);
  return true;
}

// Makes twice as many slots.
void BpeMerges::Grow() {
  const std::vector<Slot> before = std::move(slots_);
  slots_.assign(std::max<size_t>(1024, 2 * before.size()), Slot());
  shift_ = 64 - std::countr_zero(slots_.size());
  for (const Slot& slot : before) {
    if (slot.rank != kNoRank) slots_[PlaceOf(slot.pair)] = slot;
  }
}

absl::Status BpeMerges::Apply(std::vector<int32_t>* tokens, ReadProgress* progress) const {
  if (tokens->size() > kSearched) return Heap(*this, tokens, progress).Apply();
  const auto bytes = static_cast<int64_t>(tokens->size());
  ApplyBySearch(tokens);
  if (progress != nullptr) progress->bytes += bytes;
  return absl::OkStatus();
}

void BpeMerges::ApplyBySearch(std::vector<int32_t>* tokens) const {
  std::vector<int32_t>& ids = *tokens;
  uint32_t ranks[kSearched];
  size_t pairs = ids.empty() ? 0 : ids.size() - 1;
  for (size_t i = 0; i < pairs; ++i) ranks[i] = RankOf(ids[i], ids[i + 1]);
  while (pairs > 0) {
    const size_t at = std::min_element(ranks, ranks + pairs) - ranks;
    if (ranks[at] == kNoRank) break;
    ids[at] = merged_[ranks[at]];
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(at) + 1);
    std::copy(ranks + at + 1, ranks + pairs, ranks + at);
    --pairs;
    if (at < pairs) ranks[at] = RankOf(ids[at], ids[at + 1]);
    if (at > 0) ranks[at - 1] = RankOf(ids[at - 1], ids[at]);
  }
}

}  // namespace nsa::train
