#include "worker/train/data/tokenize/ascii_split.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace nsa::train {
namespace {

// Kinds of bytes, as bits of a set.
using Kinds = uint8_t;
constexpr Kinds kUpper = 1, kLower = 2, kLetters = kUpper | kLower, kNumbers = 4, kBlanks = 8,
                kNewlines = 16, kSpaces = kBlanks | kNewlines, kSymbols = 32, kControls = 64,
                kMarks = kSymbols | kControls, kOthers = 128;
// kBlanks: white space but \r and \n; kSymbols: punctuation and symbols; kControls: the rest of
// ASCII; kOthers: what is not ASCII

constexpr std::array<Kinds, 256> kKinds = [] {
  std::array<Kinds, 256> kinds{};
  for (int c = 0; c < 256; ++c) kinds[c] = c < 128 ? kSymbols : kOthers;
  for (int c = 0; c < ' '; ++c) kinds[c] = kControls;
  kinds[0x7f] = kControls;
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

// Capital letters and then small ones (one kind may be missing), and a contraction.
size_t EndOfWord(std::string_view text, size_t letters) {
  const size_t end = EndOfRun(text, SkipRun(text, letters, kUpper), kLower);
  if (end == 0 || end == text.size() || text[end] != '\'') return end;
  // The long s (U+017F) is an s in any case, so what is not ASCII decides after an apostrophe.
  return IsAt(text, end + 1, kOthers) ? 0 : end + AnyContractionAt(text, end);
}

template <bool kContractions, size_t kMostDigits>
size_t O200k(std::string_view text, size_t begin) {
  const size_t letters = BeginOfLetters(text, begin);
  if (IsAt(text, letters, kOthers)) return 0;
  if (IsAt(text, letters, kLetters)) {
    return kContractions ? EndOfWord(text, letters)
                         : EndOfRun(text, SkipRun(text, letters, kUpper), kLower);
  }
  if (IsAt(text, begin, kNumbers)) return EndOfNumber(text, begin, kMostDigits);
  return EndOfMarksOrSpace(text, begin, /*slashes=*/true);
}

template <size_t kMostDigits>
size_t Numbers(std::string_view text, size_t begin) {
  if (IsAt(text, begin, kNumbers)) return EndOfNumber(text, begin, kMostDigits);
  return EndOfRun(text, begin, kLetters | kSpaces | kMarks);
}

// Only a character whose first byte is one of those from U+3040 to U+9FA5 can be a match.
size_t HanAndKana(std::string_view text, size_t begin) {
  const bool none = std::none_of(text.begin() + static_cast<ptrdiff_t>(begin), text.end(),
                                 [](char c) { return c >= '\xe3' && c <= '\xe9'; });
  return none ? text.size() : 0;
}

// [\p{P}\p{S}]+[\r\n]*
size_t EndOfSymbols(std::string_view text, size_t begin) {
  const size_t end = EndOfRun(text, begin, kSymbols);
  return end == 0 ? 0 : SkipRun(text, end, kNewlines);
}

size_t DeepSeek(std::string_view text, size_t begin) {
  if (IsAt(text, begin, kSymbols)) {
    if (IsAt(text, begin + 1, kLetters)) return SkipRun(text, begin + 1, kLetters);
    return EndOfSymbols(text, begin);
  }
  const size_t letters = begin + (IsAt(text, begin, kBlanks | kNumbers | kControls) ? 1 : 0);
  if (IsAt(text, letters, kOthers)) return 0;
  if (IsAt(text, letters, kLetters)) return EndOfRun(text, letters, kLetters);
  if (text[begin] == ' ' && IsAt(text, letters, kSymbols)) return EndOfSymbols(text, letters);
  if (IsAt(text, begin, kSpaces)) return EndOfLinesOrSpace(text, begin);
  // A number that no letter follows is left out. It is all of the piece that a number has become.
  const size_t end = SkipRun(text, begin, kNumbers);
  return end == text.size() ? end : 0;
}

struct Known {
  std::string_view pattern;
  AsciiSplit split;
  bool every_text;
};
constexpr size_t kAnyNumber = size_t{1} << 62;
constexpr Known kKnown[] = {{kGpt2Pattern, Gpt2, true},
                            {kCl100kPattern, Cl100k<3>, true},
                            {kQwen2Pattern, Cl100k<1>, true},
                            {kO200kPattern, O200k<true, 3>, true},
                            {kTekkenPattern, O200k<false, 1>, true},
                            {kThreeDigitsPattern, Numbers<3>, false},
                            {kDigitPattern, Numbers<1>, false},
                            {kNumberPattern, Numbers<kAnyNumber>, false},
                            {kHanAndKanaPattern, HanAndKana, false},
                            {kDeepSeekPattern, DeepSeek, false}};

const Known* Find(std::string_view pattern) {
  const auto* const known = std::find_if(std::begin(kKnown), std::end(kKnown),
                                         [&](const Known& k) { return k.pattern == pattern; });
  return known == std::end(kKnown) ? nullptr : known;
}

}  // namespace

AsciiSplit AsciiSplitOf(std::string_view pattern) {
  const Known* const known = Find(pattern);
  return known == nullptr ? nullptr : known->split;
}

bool MatchesEveryText(std::string_view pattern) {
  const Known* const known = Find(pattern);
  return known != nullptr && known->every_text;
}

}  // namespace nsa::train
