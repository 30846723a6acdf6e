#include "worker/train/data/tokenize/text/added_tokens.h"

#include "absl/strings/str_format.h"

namespace nsa::train {
namespace {

uint64_t EdgeOf(uint32_t node, char c) {
  return uint64_t{node} << 8 | static_cast<unsigned char>(c);
}

size_t FirstTwo(char first, char second) {
  return static_cast<size_t>(static_cast<unsigned char>(first)) << 8 |
         static_cast<unsigned char>(second);
}

}  // namespace

absl::Status AddedTokens::Add(const std::string& text, int32_t id, bool special) {
  if (text.empty() || text.size() > kLongestAddedToken) {
    return absl::InvalidArgumentError(
        absl::StrFormat("has %d bytes (from 1 to %d)", text.size(), kLongestAddedToken));
  }
  bytes_ += text.size();
  if (bytes_ > kMostAddedBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "has, with those before it, %d bytes (at most %d)", bytes_, kMostAddedBytes));
  }
  uint32_t node = 0;
  for (const char c : text) {
    const auto [edge, made] = next_.emplace(EdgeOf(node, c), static_cast<uint32_t>(tokens_.size()));
    if (made) tokens_.push_back(kNone);
    node = edge->second;
  }
  if (tokens_[node] != kNone) return absl::OkStatus();
  tokens_[node] = special ? kSpecial : id;
  ordinary_ += special ? 0 : 1;
  for (int second = 0; second < 256; ++second) {
    const char c = static_cast<char>(second);
    if (text.size() == 1 || text[1] == c) first_two_[FirstTwo(text[0], c)] = true;
  }
  return absl::OkStatus();
}

AddedTokens::Stretch AddedTokens::LongestAt(std::string_view text, size_t at) const {
  Stretch longest;
  uint32_t node = 0;
  for (size_t end = at; end < text.size();) {
    const auto edge = next_.find(EdgeOf(node, text[end++]));
    if (edge == next_.end()) break;
    node = edge->second;
    if (tokens_[node] != kNone) longest = {text.substr(at, end - at), tokens_[node]};
  }
  return longest;
}

AddedTokens::Stretch AddedTokens::Walk::Next() {
  if (at_ == found_ && !next_.text.empty()) {
    at_ += next_.text.size();
    return next_;
  }
  const size_t begin = at_;
  next_ = {};
  found_ = tokens_->empty() ? text_.size() : begin;
  while (found_ < text_.size()) {
    const char second = found_ + 1 < text_.size() ? text_[found_ + 1] : '\0';
    if (tokens_->first_two_[FirstTwo(text_[found_], second)]) {
      next_ = tokens_->LongestAt(text_, found_);
      if (next_.token >= 0) break;
      // A special token is text, and so is what is in it.
      if (!next_.text.empty()) found_ += next_.text.size() - 1;
      next_ = {};
    }
    ++found_;
  }
  at_ = found_;
  if (at_ > begin) return {.text = text_.substr(begin, at_ - begin)};
  at_ += next_.text.size();
  return next_;
}

}  // namespace nsa::train
