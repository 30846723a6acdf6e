#include "common/base/characters/utf8.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace nsa {
namespace {

// As RFC 3629 writes a code.
std::string Encode(uint32_t code) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | (code >> shift & 0x3f)); };
  const auto lead = [&](int mark, int shift) { return static_cast<char>(mark | code >> shift); };
  if (code < 0x80) return {static_cast<char>(code)};
  if (code < 0x800) return {lead(0xc0, 6), tail(0)};
  if (code < 0x10000) return {lead(0xe0, 12), tail(6), tail(0)};
  return {lead(0xf0, 18), tail(12), tail(6), tail(0)};
}

bool IsSurrogate(uint32_t code) { return code >= 0xd800 && code <= 0xdfff; }

TEST(Utf8Test, EveryCodeIsReadBackAndNoPartOfItIs) {
  for (uint32_t code = 0; code <= 0x10ffff; ++code) {
    const std::string text = Encode(code);
    const Utf8Character character = FirstUtf8(text + "\x80");
    ASSERT_EQ(character.bytes, IsSurrogate(code) ? 0 : text.size()) << code;
    ASSERT_EQ(character.code, IsSurrogate(code) ? 0 : code) << code;
    ASSERT_EQ(FirstUtf8(std::string_view(text).substr(0, text.size() - 1)).bytes, 0) << code;
  }
}

// The second byte of table 3-7 of the Unicode standard, by the first.
bool MayFollow(int first, int second) {
  if (first == 0xe0) return second >= 0xa0 && second <= 0xbf;
  if (first == 0xed) return second >= 0x80 && second <= 0x9f;
  if (first == 0xf0) return second >= 0x90 && second <= 0xbf;
  if (first == 0xf4) return second >= 0x80 && second <= 0x8f;
  return first >= 0xc2 && first <= 0xf4 && second >= 0x80 && second <= 0xbf;
}

TEST(Utf8Test, TheFirstTwoBytesDecideAsInTheStandard) {
  for (int first = 0x80; first < 0x100; ++first) {
    for (int second = 0; second < 0x100; ++second) {
      const std::string text = {static_cast<char>(first), static_cast<char>(second), '\x80',
                                '\xbf'};
      const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
      EXPECT_EQ(FirstUtf8(text).bytes, MayFollow(first, second) ? length : 0)
          << std::hex << first << " " << second;
    }
  }
}

TEST(Utf8Test, OneByteOrderMarkAtTheBeginningIsLeftOut) {
  EXPECT_EQ(WithoutByteOrderMark("\xEF\xBB\xBFtext"), "text");
  EXPECT_EQ(WithoutByteOrderMark("\xEF\xBB\xBF"), "");
  EXPECT_EQ(WithoutByteOrderMark("a\xEF\xBB\xBF"), "a\xEF\xBB\xBF");
  EXPECT_EQ(WithoutByteOrderMark("\xEF\xBB"), "\xEF\xBB");
}

TEST(Utf8Test, LaterBytesMustContinueTheCharacter) {
  EXPECT_EQ(FirstUtf8("\xe2\x82\x41").bytes, 0);
  EXPECT_EQ(FirstUtf8("\xf0\x9f\x98\xc0").bytes, 0);
  EXPECT_EQ(FirstUtf8("\xf0\x9f\x41\x80").bytes, 0);
  EXPECT_EQ(FirstUtf8("").bytes, 0);
}

TEST(Utf8Test, TheLastCharacterIsWholeOrNone) {
  for (const std::string_view c : {"a", "é", "日", "😀"}) {
    const std::string text = "x" + std::string(c);
    EXPECT_EQ(LastUtf8(text).bytes, c.size());
    EXPECT_EQ(LastUtf8(text).code, FirstUtf8(c).code);
    EXPECT_EQ(LastUtf8(text.substr(0, text.size() - 1)).bytes, c.size() > 1 ? 0u : 1u);
  }
  EXPECT_EQ(LastUtf8("").bytes, 0u);
  EXPECT_EQ(LastUtf8("a\x80").bytes, 0u);
}

}  // namespace
}  // namespace nsa
