#include "worker/train/data/tokenize/text/nfc.h"

#include <random>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"

namespace nsa::train {
namespace {

using testing::HasSubstr;

std::string Nfc(const std::string& text) {
  std::string storage;
  const auto normalized = ToNfc(text, &storage);
  EXPECT_OK(normalized);
  return normalized.ok() ? std::string(*normalized) : "";
}

TEST(Nfc, ComposesWhatUnicodeComposes) {
  const std::pair<std::string, std::string> cases[] = {
      {"cafe\u0301 a\u0308b", "caf\u00e9 \u00e4b"},
      {"e\u0323\u0301 e\u0301\u0323", "\u1eb9\u0301 \u1eb9\u0301"},  // the order of marks
      {"\u00e9\u0323", "\u1eb9\u0301"},
      {"\u212b \u2126 \u0340\u0343", "\u00c5 \u03a9 \u0300\u0313"},  // one for another
      {"\u1100\u1161\u11a8 \uac00\u11a8 \uac00\u11a7", "\uac01 \uac01 \uac00\u11a7"},
      {"\u0958 \u2adc \U0001d15e", "\u0915\u093c \u2add\u0338 \U0001d157\U0001d165"},  // excluded
      {"\uf900 \U0002f800", "\u8c48 \u4e3d"},
      {"\u09c7\u09be \u0dd9\u0dcf\u0dca", "\u09cb \u0ddd"},
      {"\ufb01 \u00b2 \uff21", "\ufb01 \u00b2 \uff21"}};  // only NFKC changes these
  for (const auto& [text, wanted] : cases) EXPECT_EQ(Nfc(text), wanted) << text;
}

TEST(Nfc, WhatIsNormalizedIsNotCopied) {
  for (const std::string text :
       {"", "plain", "déjà vu Ångström", "日本語 \uac00", "\u1eb9\u0301x\u0338",
        "\u0301 at the begin", "\xff\xc3 no UTF-8"}) {
    std::string storage;
    const auto normalized = ToNfc(text, &storage);
    ASSERT_OK(normalized);
    EXPECT_EQ(*normalized, text);
    EXPECT_EQ(normalized->data(), text.data()) << text;
    EXPECT_EQ(storage, "");
  }
}

// U+11935 U+11930 is U+11938 since Unicode 13, U+1E08F a mark since Unicode 15. Hugging Face's
// library knows neither.
TEST(Nfc, CharactersThatCameLaterStayAsTheyAre) {
  for (const std::string text : {"\U00011935\U00011930", "\U00011938", "a\U0001e08f\u0323",
                                 "a\u0898\u0323", "\U0001133b\u0323\U0001133b"}) {
    EXPECT_EQ(Nfc(text), text) << absl::CHexEscape(text);
  }
}

TEST(Nfc, NothingCombinesAcrossBytesThatAreNotUtf8) {
  const std::pair<std::string, std::string> cases[] = {
      {"e\xcc\x81", "\u00e9"},
      {"e\xff\u0301", "e\xff\u0301"},
      {"e\xcc", "e\xcc"},
      {"e\u0301\xcc", "\u00e9\xcc"},
      {"e\xcc\xcc\x81", "e\xcc\u0301"},
      {"\xe0\x80\x80\u0301 \xed\xa0\x80\u0301", "\xe0\x80\x80\u0301 \xed\xa0\x80\u0301"},
      {"\xf4\x90\x80\x80\u0301e\u0301", "\xf4\x90\x80\x80\u0301\u00e9"}};
  for (const auto& [text, wanted] : cases) EXPECT_EQ(Nfc(text), wanted) << absl::CHexEscape(text);
}

// Normalizing twice is normalizing once, no text grows more than threefold, and what is before or
// behind a plain letter does not matter.
TEST(Nfc, IsStableAndBoundedForAnyText) {
  const std::string alphabet[] = {"a",      "e",      "\u0301", "\u0323", "\u0344",     "\u00e9",
                                  "\u1100", "\u1161", "\u11a8", "\uac00", "\U0001d15e", "\u0958",
                                  "\u0930", "\u093c", "\u2adc", "\xff",   "\xc3",       "\ufb2c",
                                  "\u0390", "\u0345", "\u1fb7", "\u0898", "日",         " "};
  std::mt19937 random(20261123);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (size_t i = random() % 12; i > 0; --i) text += alphabet[random() % std::size(alphabet)];
    const std::string once = Nfc(text);
    EXPECT_EQ(Nfc(once), once) << absl::CHexEscape(text);
    EXPECT_LE(once.size(), 3 * text.size()) << absl::CHexEscape(text);
    EXPECT_EQ(Nfc("x" + std::string(17, 'y') + " " + text + "z"),
              "x" + std::string(17, 'y') + Nfc(" " + text) + "z")
        << absl::CHexEscape(text);
  }
  EXPECT_EQ(Nfc("\U0001d160").size(), 12u);
}

// Marks of two classes by turns: putting each in its place by itself would take the square of them.
TEST(Nfc, AMillionMarksAreOrderedAndTooManyAreRefused) {
  std::string marks;
  for (int i = 0; i < 500'000; ++i) marks += "\u0301\u0323";
  std::string wanted = "\u1eb9";
  for (int i = 1; i < 500'000; ++i) wanted += "\u0323";
  for (int i = 0; i < 500'000; ++i) wanted += "\u0301";
  EXPECT_TRUE(Nfc("e" + marks) == wanted);
  std::string storage, many = "abc e";
  while (many.size() < 5 + kLongestCombiningRun) many += "\u0301\u0323";
  EXPECT_THAT(ToNfc(many, &storage),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("16777217 bytes")));
  many.resize(many.size() - 2);
  EXPECT_OK(ToNfc(many, &storage));
}

}  // namespace
}  // namespace nsa::train
