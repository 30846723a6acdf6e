#include "worker/train/data/tokens/token_store.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace nsa::train {

int64_t TokenStore::EndOf(size_t stretch) const {
  return stretch + 1 < stretches_.size() ? stretches_[stretch + 1].begin : size_;
}

void TokenStore::Append(const std::shared_ptr<const TokenShard>& shard, int64_t begin,
                        int64_t end) {
  if (begin == end) return;
  if (shards_.empty() || shards_.back() != shard) shards_.push_back(shard);
  const auto index = static_cast<int32_t>(shards_.size()) - 1;
  const bool follows = !stretches_.empty() && stretches_.back().shard == index &&
                       stretches_.back().at + (size_ - stretches_.back().begin) == begin;
  if (!follows) stretches_.push_back({.begin = size_, .at = begin, .shard = index});
  size_ += end - begin;
}

absl::Status TokenStore::Copy(int64_t begin, std::span<Token> to) const {
  const auto after =
      std::upper_bound(stretches_.begin(), stretches_.end(), begin,
                       [](int64_t token, const Stretch& stretch) { return token < stretch.begin; });
  for (auto i = static_cast<size_t>(after - stretches_.begin()) - 1; !to.empty(); ++i) {
    const Stretch& stretch = stretches_[i];
    const int64_t count = std::min<int64_t>(std::ssize(to), EndOf(i) - begin);
    NSA_RETURN_IF_ERROR(shards_[static_cast<size_t>(stretch.shard)]->Copy(
        stretch.at + begin - stretch.begin, to.first(static_cast<size_t>(count))));
    to = to.subspan(static_cast<size_t>(count));
    begin += count;
  }
  return absl::OkStatus();
}

void TokenStore::Move(int64_t begin, int64_t end, TokenStore* other) {
  TokenStore left;
  for (size_t i = 0; i < stretches_.size(); ++i) {
    const Stretch& stretch = stretches_[i];
    const auto& shard = shards_[static_cast<size_t>(stretch.shard)];
    const int64_t stop = EndOf(i);
    const int64_t from = std::clamp(begin, stretch.begin, stop);
    const int64_t to = std::clamp(end, from, stop);
    const auto at = [&](int64_t token) { return stretch.at + token - stretch.begin; };
    left.Append(shard, stretch.at, at(from));
    other->Append(shard, at(from), at(to));
    left.Append(shard, at(to), at(stop));
  }
  *this = std::move(left);
}

}  // namespace nsa::train
