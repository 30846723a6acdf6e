#define PCRE2_CODE_UNIT_WIDTH 8
#include "worker/train/data/tokenize/ascii_split.h"

#include <pcre2.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "worker/train/data/tokenize/split_pattern.h"
#include "worker/train/data/tokenize/word_table.h"

namespace nsa::train {
namespace {

// A pattern by PCRE2.
class Pattern {
 public:
  explicit Pattern(std::string_view pattern) {
    const auto translated = Pcre2Pattern(pattern);
    EXPECT_OK(translated);
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated->data()), translated->size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &error, &offset,
                              nullptr));
    match_.reset(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
  }

  // The end of the match that begins at `begin`, or the begin of the next one.
  size_t End(const std::string& text, size_t begin) const {
    const int found = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                  text.size(), begin, 0, match_.get(), nullptr);
    const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(match_.get());
    if (found <= 0) return text.size();
    return ends[0] == begin ? ends[1] : ends[0];
  }

 private:
  std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code_{nullptr, pcre2_code_free};
  std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match_{nullptr,
                                                                             pcre2_match_data_free};
};

// Those that match every text, and others.
const std::string_view kPatterns[] = {kGpt2Pattern, kCl100kPattern, kQwen2Pattern, kO200kPattern,
                                      kTekkenPattern};
const std::string_view kParts[] = {kThreeDigitsPattern, kDigitPattern, kNumberPattern,
                                   kHanAndKanaPattern, kDeepSeekPattern};

std::vector<std::string_view> AllPatterns() {
  std::vector<std::string_view> all(std::begin(kPatterns), std::end(kPatterns));
  all.insert(all.end(), std::begin(kParts), std::end(kParts));
  return all;
}

TEST(AsciiSplit, AgreesWithEveryPatternWhereverItAnswers) {
  std::mt19937 random(20261123);
  // Often what the patterns treat in their own ways; sometimes any byte.
  const std::string alphabet[] = {" ",      "  ",
                                  "\n",     "\t",
                                  "\v",     "\r",
                                  "'",      "s",
                                  "t",      "re",
                                  "ve",     "m",
                                  "ll",     "d",
                                  "S",      "LL",
                                  "a",      "Z",
                                  "0",      "7",
                                  "!",      "_",
                                  "/",      "\x1c",
                                  "-",      "\r\n",
                                  "é",      "\u00a0",
                                  "\u2028", "٣",
                                  "\u017f", "\u0301",
                                  "ǅ",      "日",
                                  "\xff",   "\xc3",
                                  "\x7f",   std::string(1, '\0')};
  constexpr size_t kAscii = 26;
  for (const std::string_view name : AllPatterns()) {
    const Pattern pattern(name);
    const AsciiSplit split = AsciiSplitOf(name);
    ASSERT_NE(split, nullptr);
    int64_t answered = 0, pieces = 0;
    for (int round = 0; round < 15000; ++round) {
      std::string text;
      const size_t letters = round % 3 == 0 ? kAscii : std::size(alphabet);
      for (size_t i = random() % 24 + 1; i > 0; --i) text += alphabet[random() % letters];
      for (size_t begin = 0; begin < text.size();) {
        const size_t wanted = pattern.End(text, begin);
        const size_t end = split(text, begin);
        if (end != 0) {
          ASSERT_EQ(end, wanted) << absl::CHexEscape(text) << " at " << begin << ", " << name;
          ++answered;
        }
        ++pieces;
        begin = wanted;
      }
    }
    EXPECT_GT(answered, pieces / 4) << name;
  }
  EXPECT_EQ(AsciiSplitOf("a"), nullptr);
}

// A pattern whose matches leave something out would lose it if the rest were removed.
TEST(AsciiSplit, KnowsWhichPatternsLeaveNothingOut) {
  for (const std::string_view pattern : kPatterns) EXPECT_TRUE(MatchesEveryText(pattern));
  for (const std::string_view pattern : kParts) EXPECT_FALSE(MatchesEveryText(pattern));
  EXPECT_FALSE(MatchesEveryText("a"));
}

TEST(AsciiSplit, AnswersForPlainText) {
  const std::string text = "The cell's  wall, 1990:\n\n  it'll hold";
  const size_t wanted[] = {12, 14, 16, 12, 16};
  for (size_t i = 0; i < std::size(kPatterns); ++i) {
    size_t pieces = 0;
    for (size_t begin = 0; begin < text.size(); ++pieces) {
      const size_t end = AsciiSplitOf(kPatterns[i])(text, begin);
      ASSERT_GT(end, begin) << begin << ", " << kPatterns[i];
      begin = end;
    }
    EXPECT_EQ(pieces, wanted[i]) << kPatterns[i];
  }
}

TEST(WordTable, FindsExactlyTheWordsThatWereAdded) {
  WordTable table;
  EXPECT_EQ(table.Find("a"), -1);
  table.Reserve(1000);
  for (int i = 0; i < 1000; ++i) table.Add(std::to_string(i), i);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(table.Find(std::to_string(i)), i);
  for (const char* other : {"", "1000", "01", "a", "99 "}) EXPECT_EQ(table.Find(other), -1);
}

}  // namespace
}  // namespace nsa::train
