#include "worker/train/data/tokenize/text/added_tokens.h"

#include "absl/strings/str_format.h"
#include "common/base/characters/utf8.h"
#include "worker/train/data/tokenize/text/character_classes.h"

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

absl::Status AddedTokens::Add(const std::string& text, const Rules& rules) {
  if (text.empty() || text.size() > kLongestAddedToken) {
    return absl::InvalidArgumentError(
        absl::StrFormat("has %d bytes (from 1 to %d)", text.size(), kLongestAddedToken));
  }
  bytes_ += text.size();
  if (bytes_ > kMostAddedBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "has, with those before it, %d bytes (at most %d)", bytes_, kMostAddedBytes));
  }
  rstrip_ |= rules.rstrip && !rules.special;
  space_ |= IsWhiteSpace(FirstUtf8(text).code) && !rules.special;
  if (rstrip_ && space_) {
    return absl::InvalidArgumentError(
        "takes white space behind it (rstrip) and another begins with some (one of both)");
  }
  uint32_t node = 0;
  for (const char c : text) {
    const auto [edge, made] = next_.emplace(EdgeOf(node, c), static_cast<uint32_t>(tokens_.size()));
    if (made) tokens_.push_back(kNone);
    node = edge->second;
  }
  if (tokens_[node] != kNone) return absl::OkStatus();
  tokens_[node] = static_cast<int32_t>(rules_.size());
  rules_.push_back(rules);
  ordinary_ += rules.special ? 0 : 1;
  for (int second = 0; second < 256; ++second) {
    const char c = static_cast<char>(second);
    if (text.size() == 1 || text[1] == c) first_two_[FirstTwo(text[0], c)] = true;
  }
  return absl::OkStatus();
}

const AddedTokens::Rules* AddedTokens::LongestAt(std::string_view text, size_t at,
                                                 size_t* size) const {
  const Rules* longest = nullptr;
  uint32_t node = 0;
  for (size_t end = at; end < text.size();) {
    const auto edge = next_.find(EdgeOf(node, text[end++]));
    if (edge == next_.end()) break;
    node = edge->second;
    if (tokens_[node] == kNone) continue;
    longest = &rules_[static_cast<size_t>(tokens_[node])];
    *size = end - at;
  }
  return longest;
}

AddedTokens::Stretch AddedTokens::WithSpace(std::string_view text, size_t begin, size_t at,
                                            size_t size, const Rules& rules) {
  if (rules.special) return {};
  size_t end = at + size;
  if (rules.single_word && (IsWordCharacter(LastUtf8(text.substr(0, at))) ||
                            IsWordCharacter(FirstUtf8(text.substr(end))))) {
    return {};
  }
  const auto is_space = [](Utf8Character c) { return c.bytes > 0 && IsWhiteSpace(c.code); };
  while (rules.lstrip && at > begin) {
    const Utf8Character c = LastUtf8(text.substr(begin, at - begin));
    if (!is_space(c)) break;
    at -= c.bytes;
  }
  while (rules.rstrip && end < text.size()) {
    const Utf8Character c = FirstUtf8(text.substr(end));
    if (!is_space(c)) break;
    end += c.bytes;
  }
  return {.text = text.substr(at, end - at), .token = rules.id};
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
      size_t size = 0;
      if (const Rules* const rules = tokens_->LongestAt(text_, found_, &size); rules != nullptr) {
        next_ = WithSpace(text_, begin, found_, size, *rules);
        if (!next_.text.empty()) break;
        found_ += size - 1;  // what is not the token is text, and so is what is in it
      }
    }
    ++found_;
  }
  if (!next_.text.empty()) found_ = static_cast<size_t>(next_.text.data() - text_.data());
  at_ = found_;
  if (at_ > begin) return {.text = text_.substr(begin, at_ - begin)};
  at_ += next_.text.size();
  return next_;
}

}  // namespace nsa::train
