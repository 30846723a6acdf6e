#include "worker/train/data/tokenize/gpt2_split.h"

#include <array>
#include <cstdint>

namespace nsa::train {
namespace {

enum Kind : uint8_t { kLetter, kNumber, kSpace, kMark, kOther };  // kOther: not ASCII

constexpr std::array<Kind, 256> kKinds = [] {
  std::array<Kind, 256> kinds{};
  for (int c = 0; c < 256; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool number = c >= '0' && c <= '9';
    const bool space = c == ' ' || (c >= '\t' && c <= '\r');
    kinds[c] = c >= 128 ? kOther : letter ? kLetter : number ? kNumber : space ? kSpace : kMark;
  }
  return kinds;
}();

Kind KindAt(std::string_view text, size_t at) {
  return kKinds[static_cast<unsigned char>(text[at])];
}

// The end of the run of one kind; 0 if what follows is not ASCII and may belong to it.
size_t EndOfRun(std::string_view text, size_t at, Kind kind) {
  while (at < text.size() && KindAt(text, at) == kind) ++at;
  return at < text.size() && KindAt(text, at) == kOther ? 0 : at;
}

// The length of 's, 't, 're, 've, 'm, 'll or 'd at an apostrophe; 0 if none is there.
size_t ContractionAt(std::string_view text, size_t begin) {
  const std::string_view rest = text.substr(begin + 1, 2);
  if (rest.empty()) return 0;
  if (rest[0] == 's' || rest[0] == 't' || rest[0] == 'm' || rest[0] == 'd') return 2;
  return rest == "re" || rest == "ve" || rest == "ll" ? 3 : 0;
}

// The end of white space from `begin` on. The last character before a word is left to the word,
// unless it is the only one.
size_t EndOfSpace(std::string_view text, size_t begin) {
  const size_t end = EndOfRun(text, begin, kSpace);
  if (end == 0 || end == text.size() || end == begin + 1) return end;
  return end - 1;
}

}  // namespace

size_t EndOfAsciiPiece(std::string_view text, size_t begin) {
  size_t at = begin;
  if (text[at] == '\'') {
    const size_t length = ContractionAt(text, at);
    if (length > 0) return at + length;
  }
  if (text[at] == ' ' && at + 1 < text.size()) ++at;
  const Kind kind = KindAt(text, at);
  if (kind == kOther) return 0;
  return kind == kSpace ? EndOfSpace(text, begin) : EndOfRun(text, at, kind);
}

}  // namespace nsa::train
