#include "worker/train/data/tokens/token_store.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace nsa::train {

int64_t TokenStore::EndOf(size_t stretch) const {
  return stretch + 1 < stretches_.size() ? stretches_[stretch + 1].begin : size_;
}

// Adds `count` tokens to the last stretch if they follow it, else a new stretch.
void TokenStore::Extend(int32_t map, int64_t at, int64_t count) {
  if (count == 0) return;
  const bool follows = !stretches_.empty() && stretches_.back().map == map &&
                       stretches_.back().at + (size_ - stretches_.back().begin) == at;
  if (!follows) stretches_.push_back({.begin = size_, .at = at, .map = map});
  size_ += count;
}

void TokenStore::Append(std::span<const Token> tokens) {
  const size_t held = bytes_.size();
  Extend(kHeld, static_cast<int64_t>(held) / width_, std::ssize(tokens));
  bytes_.resize(held + tokens.size() * static_cast<size_t>(width_));
  PackTokens(tokens, width_, bytes_.data() + held);
}

void TokenStore::Append(const std::shared_ptr<const TokenMap>& map, int64_t begin, int64_t end) {
  if (maps_.empty() || maps_.back() != map) maps_.push_back(map);
  Extend(static_cast<int32_t>(maps_.size()) - 1, begin, end - begin);
}

absl::Status TokenStore::Copy(int64_t begin, std::span<Token> to) const {
  const auto after =
      std::upper_bound(stretches_.begin(), stretches_.end(), begin,
                       [](int64_t token, const Stretch& stretch) { return token < stretch.begin; });
  for (auto i = static_cast<size_t>(after - stretches_.begin()) - 1; !to.empty(); ++i) {
    const int64_t count = std::min<int64_t>(std::ssize(to), EndOf(i) - begin);
    const std::span<Token> part = to.first(static_cast<size_t>(count));
    NSA_RETURN_IF_ERROR(CopyStretch(stretches_[i], begin - stretches_[i].begin, part));
    to = to.subspan(static_cast<size_t>(count));
    begin += count;
  }
  return absl::OkStatus();
}

absl::Status TokenStore::CopyStretch(const Stretch& stretch, int64_t skip,
                                     std::span<Token> to) const {
  if (stretch.map != kHeld) {
    return maps_[static_cast<size_t>(stretch.map)]->Copy(stretch.at + skip, to);
  }
  UnpackTokens(bytes_.data() + (stretch.at + skip) * width_, width_, to);
  return absl::OkStatus();
}

void TokenStore::AppendFrom(const TokenStore& other, const Stretch& stretch, int64_t count) {
  if (stretch.map != kHeld) {
    Append(other.maps_[static_cast<size_t>(stretch.map)], stretch.at, stretch.at + count);
    return;
  }
  Extend(kHeld, static_cast<int64_t>(bytes_.size()) / width_, count);
  const auto first = other.bytes_.begin() + stretch.at * width_;
  bytes_.insert(bytes_.end(), first, first + count * width_);
}

// Removes bytes that no stretch uses.
void TokenStore::EraseHeld(int64_t at, int64_t count) {
  const auto first = bytes_.begin() + at * width_;
  bytes_.erase(first, first + count * width_);
  for (Stretch& stretch : stretches_) {
    if (stretch.map == kHeld && stretch.at >= at + count) stretch.at -= count;
  }
}

void TokenStore::Move(int64_t begin, int64_t end, TokenStore* other) {
  const std::vector<Stretch> before = std::move(stretches_);
  const int64_t size = std::exchange(size_, 0);
  stretches_.clear();
  std::vector<std::pair<int64_t, int64_t>> unused;  // of bytes_: at, count
  for (size_t i = 0; i < before.size(); ++i) {
    const Stretch& stretch = before[i];
    const int64_t stop = i + 1 < before.size() ? before[i + 1].begin : size;
    const int64_t from = std::clamp(begin, stretch.begin, stop);
    const int64_t to = std::clamp(end, from, stop);
    const Stretch moved = {from, stretch.at + from - stretch.begin, stretch.map};
    Extend(stretch.map, stretch.at, from - stretch.begin);
    other->AppendFrom(*this, moved, to - from);
    if (stretch.map == kHeld) unused.emplace_back(moved.at, to - from);
    Extend(stretch.map, moved.at + to - from, stop - to);
  }
  for (auto part = unused.rbegin(); part != unused.rend(); ++part) {
    EraseHeld(part->first, part->second);
  }
}

}  // namespace nsa::train
