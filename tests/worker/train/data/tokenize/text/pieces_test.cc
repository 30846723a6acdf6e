#include "worker/train/data/tokenize/text/pieces.h"

#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "worker/train/data/tokenize/ascii_split.h"
#include "worker/train/data/tokenize/split_pattern.h"

namespace nsa::train {
namespace {

using testing::ElementsAre;

std::vector<Splitter> Splitters(const std::vector<std::string_view>& patterns, bool ascii = true) {
  std::vector<Splitter> splitters;
  for (const std::string_view pattern : patterns) {
    auto splitter = Splitter::Make(*Pcre2Pattern(pattern), ascii ? AsciiSplitOf(pattern) : nullptr);
    EXPECT_OK(splitter);
    splitters.push_back(*std::move(splitter));
  }
  return splitters;
}

std::vector<std::string> Split(Pieces* pieces, std::string_view text) {
  std::vector<std::string> found;
  pieces->Start(text);
  while (!pieces->done()) {
    std::string_view piece;
    const absl::Status status = pieces->Next(&piece);
    EXPECT_OK(status);
    if (!status.ok()) break;
    found.emplace_back(piece);
  }
  return found;
}

std::vector<std::string> SplitBy(const std::vector<std::string_view>& patterns,
                                 std::string_view text) {
  const std::vector<Splitter> splitters = Splitters(patterns);
  Pieces pieces(splitters);
  return Split(&pieces, text);
}

TEST(Pieces, EachPatternDividesThePiecesOfTheOneBefore) {
  EXPECT_THAT(SplitBy({kDigitPattern, kGpt2Pattern}, "ab 12  c"),
              ElementsAre("ab", " ", "1", "2", " ", " c"));
  EXPECT_THAT(SplitBy({kNumberPattern, "b"}, "abc12b"), ElementsAre("a", "b", "c", "12", "b"));
  // The look ahead of GPT-2's \s+(?!\S) ends with the piece.
  EXPECT_THAT(SplitBy({"c+", kGpt2Pattern}, "a   ccc  b"),
              ElementsAre("a", "   ", "ccc", " ", " b"));
  EXPECT_THAT(
      SplitBy({kThreeDigitsPattern, kHanAndKanaPattern, kDeepSeekPattern}, "a 12345円です。(x)"),
      ElementsAre("a", " ", "123", "45", "円です", "。(", "x", ")"));
}

TEST(Pieces, WithoutAPatternATextIsOnePiece) {
  EXPECT_THAT(SplitBy({}, "a b"), ElementsAre("a b"));
  EXPECT_TRUE(SplitBy({}, "").empty());
  EXPECT_TRUE(SplitBy({kGpt2Pattern}, "").empty());
}

// What was found in one text means nothing in the next.
TEST(Pieces, BeginsAfreshWithEachText) {
  const std::vector<Splitter> splitters = Splitters({"b", "c+"}, false);
  Pieces pieces(splitters);
  EXPECT_THAT(Split(&pieces, "acb"), ElementsAre("a", "c", "b"));
  std::string_view piece;
  pieces.Start("aaab");
  ASSERT_OK(pieces.Next(&piece));
  EXPECT_EQ(piece, "aaa");
  EXPECT_THAT(Split(&pieces, "cccb"), ElementsAre("ccc", "b"));
  EXPECT_THAT(Split(&pieces, "xa"), ElementsAre("xa"));
}

// The definition: all pieces of the first pattern, then all pieces of each by the second, and so
// on.
TEST(Pieces, EqualsDividingByOnePatternAfterTheOther) {
  const std::vector<std::vector<std::string_view>> sequences = {
      {kDigitPattern, kGpt2Pattern},
      {kThreeDigitsPattern, kHanAndKanaPattern, kDeepSeekPattern},
      {kNumberPattern, R"(\.\()", kCl100kPattern},
      {"a+", "b+", "ab", kTekkenPattern}};
  const std::string alphabet[] = {"a",  "b", "ab", " ",  "  ", "\n",   "1",
                                  "23", "é", "日", "。", ".",  "(",    "A",
                                  "'",  "s", "\t", "!",  "٣",  "\xff", "\xe3\x81"};
  std::mt19937 random(20261123);
  for (const std::vector<std::string_view>& patterns : sequences) {
    const std::vector<Splitter> splitters = Splitters(patterns);
    Pieces pieces(splitters);
    const std::vector<Splitter> by_pcre2 = Splitters(patterns, false);
    std::vector<Pieces> one_by_one;
    for (const Splitter& splitter : by_pcre2) one_by_one.emplace_back(std::span(&splitter, 1));
    for (int round = 0; round < 3000; ++round) {
      std::string text;
      for (size_t i = random() % 16; i > 0; --i) text += alphabet[random() % std::size(alphabet)];
      std::vector<std::string> wanted = {text};
      if (text.empty()) wanted.clear();
      for (Pieces& by_one : one_by_one) {
        std::vector<std::string> divided;
        for (const std::string& piece : wanted) {
          for (std::string& part : Split(&by_one, piece)) divided.push_back(std::move(part));
        }
        wanted = std::move(divided);
      }
      ASSERT_EQ(Split(&pieces, text), wanted) << absl::CHexEscape(text);
    }
  }
}

}  // namespace
}  // namespace nsa::train
