#include "worker/train/data/tokenize/ascii_split.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace nsa::train {
namespace {

// Kinds of bytes, as bits of a set.
using Kinds = uint8_t;
constexpr Kinds kUpper = 1, kLower = 2, kLetters = kUpper | kLower, kNumbers = 4, kBlanks = 8,
                kNewlines = 16, kSpaces = kBlanks | kNewlines, kMarks = 32, kOthers = 64;
// kBlanks: white space but \r and \n; kMarks: the rest of ASCII; kOthers: what is not ASCII

constexpr std::array<Kinds, 256> kKinds = [] {
  std::array<Kinds, 256> kinds{};
  for (int c = 0; c < 256; ++c) kinds[c] = c < 128 ? kMarks : kOthers;
  for (int c = 'a'; c <= 'z'; ++c) kinds[c] = kLower;
  for (int c = 'A'; c <= 'Z'; ++c) kinds[c] = kUpper;
  for (int c = '0'; c <= '9'; ++c) kinds[c] = kNumbers;
  for (const unsigned char c : {' ', '\t', '\v', '\f'}) kinds[c] = kBlanks;
  kinds['\r'] = kinds['\n'] = kNewlines;
  return kinds;
}();

// False at the end of the text.
bool IsAt(std::string_view text, size_t at, Kinds kinds) {
  return at < text.size() && (kKinds[static_cast<unsigned char>(text[at])] & kinds) != 0;
}

// The first byte from `at` on that is of another kind; text.size() if there is none.
size_t SkipRun(std::string_view text, size_t at, Kinds kinds) {
  while (IsAt(text, at, kinds)) ++at;
  return at;
}

// The same; 0 if what follows is not ASCII and may belong to the run.
size_t EndOfRun(std::string_view text, size_t at, Kinds kinds) {
  at = SkipRun(text, at, kinds);
  return IsAt(text, at, kOthers) ? 0 : at;
}

// \s+(?!\S)|\s+ from `begin` on: the last character before a word is left to the word, unless it is
// the only one.
size_t EndOfSpace(std::string_view text, size_t begin) {
  const size_t end = EndOfRun(text, begin, kSpaces);
  if (end == 0 || end == text.size() || end == begin + 1) return end;
  return end - 1;
}

// \s*[\r\n]+|\s+(?!\S)|\s+ from `begin` on: up to the last line end.
size_t EndOfLinesOrSpace(std::string_view text, size_t begin) {
  const size_t end = EndOfRun(text, begin, kSpaces);
  for (size_t at = end; at > begin; --at) {
    if (IsAt(text, at - 1, kNewlines)) return at;
  }
  return EndOfSpace(text, begin);
}

// The length of 's, 't, 're, 've, 'm, 'll or 'd at an apostrophe; 0 if none is there.
size_t ContractionAt(std::string_view text, size_t begin) {
  const std::string_view rest = text.substr(begin + 1, 2);
  if (rest.empty()) return 0;
  if (rest[0] == 's' || rest[0] == 't' || rest[0] == 'm' || rest[0] == 'd') return 2;
  return rest == "re" || rest == "ve" || rest == "ll" ? 3 : 0;
}

// The same in any case.
size_t AnyContractionAt(std::string_view text, size_t begin) {
  char lower[3] = {'\''};
  const std::string_view rest = text.substr(begin + 1, 2);
  for (size_t i = 0; i < rest.size(); ++i) lower[i + 1] = static_cast<char>(rest[i] | 0x20);
  return ContractionAt({lower, 1 + rest.size()}, 0);
}

size_t Gpt2(std::string_view text, size_t begin) {
  size_t at = begin;
  if (text[at] == '\'') {
    const size_t length = ContractionAt(text, at);
    if (length > 0) return at + length;
  }
  if (text[at] == ' ' && at + 1 < text.size()) ++at;
  if (IsAt(text, at, kOthers)) return 0;
  for (const Kinds kinds : {kLetters, kNumbers, kMarks}) {
    if (IsAt(text, at, kinds)) return EndOfRun(text, at, kinds);
  }
  return EndOfSpace(text, begin);
}

// \p{N}{1,most}
size_t EndOfNumber(std::string_view text, size_t begin, size_t most) {
  const size_t end = SkipRun(text.substr(0, begin + most), begin, kNumbers);
  return end < begin + most && IsAt(text, end, kOthers) ? 0 : end;
}

// ` ?[^\s\p{L}\p{N}]+[\r\n]*`, also with / among the last, or white space.
size_t EndOfMarksOrSpace(std::string_view text, size_t begin, bool slashes) {
  const size_t at = begin + (text[begin] == ' ' ? 1 : 0);
  if (IsAt(text, at, kOthers)) return 0;
  if (!IsAt(text, at, kMarks)) return EndOfLinesOrSpace(text, begin);
  size_t end = EndOfRun(text, at, kMarks);
  if (end == 0) return 0;
  while (IsAt(text, end, kNewlines) || (slashes && end < text.size() && text[end] == '/')) {
    ++end;
  }
  return end;
}

// Where the letters of a piece may begin: behind one character that is no letter, number or line
// end.
size_t BeginOfLetters(std::string_view text, size_t begin) {
  return begin + (IsAt(text, begin, kBlanks | kMarks) ? 1 : 0);
}

template <size_t kMostDigits>
size_t Cl100k(std::string_view text, size_t begin) {
  if (text[begin] == '\'') {
    const size_t length = AnyContractionAt(text, begin);
    if (length > 0) return begin + length;
  }
  const size_t letters = BeginOfLetters(text, begin);
  if (IsAt(text, letters, kOthers)) return 0;
  if (IsAt(text, letters, kLetters)) return EndOfRun(text, letters, kLetters);
  if (IsAt(text, begin, kNumbers)) return EndOfNumber(text, begin, kMostDigits);
  return EndOfMarksOrSpace(text, begin, /*slashes=*/false);
}

// Capital letters and then small ones, of which one kind may be missing, and a contraction.
size_t EndOfWord(std::string_view text, size_t letters) {
  const size_t end = EndOfRun(text, SkipRun(text, letters, kUpper), kLower);
  if (end == 0 || end == text.size() || text[end] != '\'') return end;
  // The long s (U+017F) is an s in any case, so what is not ASCII decides after an apostrophe.
  return IsAt(text, end + 1, kOthers) ? 0 : end + AnyContractionAt(text, end);
}

size_t O200k(std::string_view text, size_t begin) {
  const size_t letters = BeginOfLetters(text, begin);
  if (IsAt(text, letters, kOthers)) return 0;
  if (IsAt(text, letters, kLetters)) return EndOfWord(text, letters);
  if (IsAt(text, begin, kNumbers)) return EndOfNumber(text, begin, 3);
  return EndOfMarksOrSpace(text, begin, /*slashes=*/true);
}

struct Known {
  std::string_view pattern;
  AsciiSplit split;
};
constexpr Known kKnown[] = {{kGpt2Pattern, Gpt2},
                            {kCl100kPattern, Cl100k<3>},
                            {kQwen2Pattern, Cl100k<1>},
                            {kO200kPattern, O200k}};

}  // namespace

AsciiSplit AsciiSplitOf(std::string_view pattern) {
  const auto* const known = std::find_if(std::begin(kKnown), std::end(kKnown),
                                         [&](const Known& k) { return k.pattern == pattern; });
  return known == std::end(kKnown) ? nullptr : known->split;
}

}  // namespace nsa::train
