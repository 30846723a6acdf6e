// Characters of UTF-8, in text that may be invalid.
#pragma once

#include <cstddef>
#include <string_view>

namespace nsa {

struct Utf8Character {
  char32_t code = 0;
  size_t bytes = 0;  // 0: the text does not begin with a character
};

// The first character of the text. Overlong forms, surrogates, codes above U+10FFFF and characters
// that are cut off are none (Unicode 15, table 3-7), nor is the end of the text.
inline Utf8Character FirstUtf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (text.empty()) return {};
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  char32_t code = lead & (0x7fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fu);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  if (code < kLeast[bytes] || code > 0x10ffff || surrogate) return {};
  return {code, bytes};
}

// The last character of the text.
inline Utf8Character LastUtf8(std::string_view text) {
  for (size_t bytes = 1; bytes <= 4 && bytes <= text.size(); ++bytes) {
    const Utf8Character c = FirstUtf8(text.substr(text.size() - bytes));
    if (c.bytes == bytes) return c;
  }
  return {};
}

// The text without the byte order mark, U+FEFF, with which some editors begin a UTF-8 file.
inline std::string_view WithoutByteOrderMark(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (text.starts_with(kMark)) text.remove_prefix(kMark.size());
  return text;
}

}  // namespace nsa
