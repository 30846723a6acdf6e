#include "worker/train/data/tokenize/text/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <bitset>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/characters/utf8.h"
#include "common/base/status.h"

namespace nsa::train {
namespace {

constexpr char32_t kCharacters = 0x110000;

// Those that got a combining class or a decomposition in Unicode 10 to 15, by comparison of
// utf8proc 2.8 (Unicode 15) with Hugging Face's tokenizers 0.22.2.
struct Range {
  char32_t first, last;
};
constexpr Range kAfterUnicode9[] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
    {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},
    {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},   {0x10d24, 0x10d27},
    {0x10eab, 0x10eac}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85},
    {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x1183a},
    {0x11938, 0x11938}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0},
    {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42},
    {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1},
    {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef},
    {0x1e4ec, 0x1e4ef}};

bool IsNewer(char32_t c) {
  const Range* const range =
      std::partition_point(std::begin(kAfterUnicode9), std::end(kAfterUnicode9),
                           [&](const Range& r) { return r.last < c; });
  return range != std::end(kAfterUnicode9) && range->first <= c;
}

using CharacterSet = std::bitset<kCharacters>;

// What a character becomes; four are enough for every canonical decomposition.
struct Decomposition {
  int32_t characters[4];
  size_t size;
};
Decomposition Decompose(char32_t c) {
  Decomposition parts{};
  int boundary = 0;
  parts.size = static_cast<size_t>(
      utf8proc_decompose_char(static_cast<int32_t>(c), parts.characters,
                              std::ssize(parts.characters), UTF8PROC_DECOMPOSE, &boundary));
  return parts;
}

// Composes decomposed characters, whose marks are in order, in place. Returns how many are left.
size_t Compose(int32_t* characters, size_t size) {
  return static_cast<size_t>(
      utf8proc_normalize_utf32(characters, static_cast<utf8proc_ssize_t>(size),
                               static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE)));
}

// The characters that another may stand before in the same run: those that change, that change
// places, or that combine with what is before them. A run begins with any other character.
std::unique_ptr<const CharacterSet> FindUnsettled() {
  auto unsettled = std::make_unique<CharacterSet>();
  for (char32_t c = 0; c < kCharacters; ++c) {
    if (IsNewer(c)) continue;
    const utf8proc_property_t* const property = utf8proc_get_property(static_cast<int32_t>(c));
    if (property->combining_class != 0) unsettled->set(c);
    Decomposition parts = Decompose(c);
    const bool same = parts.size == 1 && parts.characters[0] == static_cast<int32_t>(c);
    if (same) continue;
    for (size_t i = 1; i < parts.size; ++i) {
      unsettled->set(static_cast<size_t>(parts.characters[i]));
    }
    const bool composed = Compose(parts.characters, parts.size) == 1 &&
                          parts.characters[0] == static_cast<int32_t>(c);
    if (!composed) unsettled->set(c);
  }
  return unsettled;
}

const CharacterSet& Unsettled() {
  static const std::unique_ptr<const CharacterSet> set = FindUnsettled();
  return *set;
}

// The first byte from `at` on that is not ASCII.
size_t SkipAscii(std::string_view text, size_t at) {
  uint64_t eight = 0;
  for (; at + sizeof(eight) <= text.size(); at += sizeof(eight)) {
    std::memcpy(&eight, text.data() + at, sizeof(eight));
    if ((eight & 0x8080808080808080) != 0) break;
  }
  while (at < text.size() && (text[at] & 0x80) == 0) ++at;
  return at;
}

// A run of characters that are normalized together.
struct Run {
  size_t begin = 0;
  size_t end = 0;
};

// The next run from `at` on with a character that is not settled; empty at the end of the text.
Run NextRun(std::string_view text, size_t at) {
  const CharacterSet& unsettled = Unsettled();
  size_t settled = at;  // where the character before begins; `at`, if it cannot combine
  while (at < text.size()) {
    const size_t end_of_ascii = SkipAscii(text, at);
    if (end_of_ascii > at) settled = end_of_ascii - 1;
    at = end_of_ascii;
    if (at == text.size()) break;
    const Utf8Character c = FirstUtf8(text.substr(at));
    if (c.bytes > 0 && unsettled[c.code]) {
      Run run{.begin = settled, .end = at};
      for (Utf8Character next = c; next.bytes > 0 && unsettled[next.code];
           next = FirstUtf8(text.substr(run.end))) {
        run.end += next.bytes;
        if (run.end == text.size()) break;
      }
      return run;
    }
    settled = c.bytes > 0 ? at : at + 1;
    at += std::max<size_t>(1, c.bytes);
  }
  return {.begin = text.size(), .end = text.size()};
}

// A character with its combining class above it.
constexpr int kClassShift = 21;
constexpr uint32_t kCodeMask = (1u << kClassShift) - 1;

uint32_t WithClass(int32_t c) {
  return static_cast<uint32_t>(c) | static_cast<uint32_t>(utf8proc_get_property(c)->combining_class)
                                        << kClassShift;
}

// Stable, so that marks of one class stay in their order.
void OrderMarks(std::vector<uint32_t>* characters) {
  const auto is_mark = [](uint32_t c) { return c >> kClassShift != 0; };
  for (auto at = characters->begin(); at != characters->end();) {
    const auto marks = std::find_if(at, characters->end(), is_mark);
    at = std::find_if_not(marks, characters->end(), is_mark);
    std::stable_sort(marks, at, [](uint32_t left, uint32_t right) {
      return left >> kClassShift < right >> kClassShift;
    });
  }
}

// The characters of a run, decomposed, with the marks of each in order.
std::vector<int32_t> DecomposeRun(std::string_view run) {
  std::vector<uint32_t> characters;
  for (size_t at = 0; at < run.size();) {
    const Utf8Character c = FirstUtf8(run.substr(at));
    at += c.bytes;
    if (IsNewer(c.code)) {
      characters.push_back(c.code);
      continue;
    }
    const Decomposition parts = Decompose(c.code);
    for (size_t i = 0; i < parts.size; ++i) characters.push_back(WithClass(parts.characters[i]));
  }
  OrderMarks(&characters);
  std::vector<int32_t> codes;
  codes.reserve(characters.size());
  for (const uint32_t c : characters) codes.push_back(static_cast<int32_t>(c & kCodeMask));
  return codes;
}

absl::Status NormalizeRun(std::string_view run, size_t at, std::string* normalized) {
  if (run.size() > kLongestCombiningRun) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d bytes of combining characters from byte %d on (at most %d); remove them, or use a "
        "tokenizer without a normalizer",
        run.size(), at, kLongestCombiningRun));
  }
  std::vector<int32_t> characters = DecomposeRun(run);
  characters.resize(Compose(characters.data(), characters.size()));
  for (const int32_t c : characters) {
    utf8proc_uint8_t bytes[4];
    const utf8proc_ssize_t size = utf8proc_encode_char(c, bytes);
    normalized->append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string_view> ToNfc(std::string_view text, std::string* storage) {
  storage->clear();
  size_t copied = 0;
  std::string normalized;
  for (Run run = NextRun(text, 0); run.begin < text.size(); run = NextRun(text, run.end)) {
    const std::string_view before = text.substr(run.begin, run.end - run.begin);
    normalized.clear();
    NSA_RETURN_IF_ERROR(NormalizeRun(before, run.begin, &normalized));
    if (normalized == before) continue;
    if (copied == 0) storage->reserve(text.size() + text.size() / 16);
    storage->append(text, copied, run.begin - copied);
    *storage += normalized;
    copied = run.end;
  }
  if (copied == 0) return text;
  storage->append(text, copied);
  return *storage;
}

}  // namespace nsa::train
