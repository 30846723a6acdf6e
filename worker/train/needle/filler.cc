#include "worker/train/needle/filler.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "worker/train/score/utf8.h"

namespace nsa::train {
namespace {

constexpr char kSentences[] =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

std::vector<std::string> WordsOf(std::string_view text) {
  return absl::StrSplit(absl::string_view(text.data(), text.size()), absl::ByAnyChar(" \t\r\n\v\f"),
                        absl::SkipEmpty());
}

bool HasControls(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (absl::ascii_iscntrl(byte) && !absl::ascii_isspace(byte));
  });
}

absl::Status Wrong(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("filler: ", what));
}

}  // namespace

Filler::Filler() : words_(WordsOf(kSentences)) {}

absl::StatusOr<Filler> Filler::FromText(std::string_view text) {
  if (ValidUtf8(text) != text) return Wrong("not UTF-8; give a text");
  if (HasControls(text)) return Wrong("has control characters; give a text");
  std::vector<std::string> words = WordsOf(text);
  if (words.size() < kLeastWords) {
    return Wrong(
        absl::StrFormat("%d words (at least %d); give a longer text", words.size(), kLeastWords));
  }
  for (const std::string& word : words) {
    if (word.size() <= kLongestWord) continue;
    return Wrong(absl::StrFormat("a word of %d bytes (at most %d); give a text with spaces",
                                 word.size(), kLongestWord));
  }
  return Filler(std::move(words));
}

std::string Filler::Words(size_t bytes, size_t* next) const {
  std::string text;
  while (true) {
    const std::string& word = words_[*next % words_.size()];
    if (text.size() + word.size() + 1 > bytes) return text;
    absl::StrAppend(&text, word, " ");
    *next = (*next + 1) % words_.size();
  }
}

}  // namespace nsa::train
