#include "worker/train/data/tokenize/split_pattern.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "worker/train/data/tokenize/ascii_split.h"
#include "worker/train/data/tokenize/splitter.h"

namespace nsa::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The pieces of a text; what no match has is in brackets.
std::vector<std::string> Pieces(std::string_view pattern, const std::string& text) {
  const auto translated = Pcre2Pattern(pattern);
  EXPECT_OK(translated);
  if (!translated.ok()) return {};
  const auto splitter = Splitter::Make(*translated, nullptr);
  EXPECT_OK(splitter);
  if (!splitter.ok()) return {};
  const Splitter::Match match = splitter->NewMatch();
  std::vector<std::string> pieces;
  Splitter::Piece piece;
  for (size_t begin = 0; begin < text.size(); begin = piece.end) {
    const absl::Status status = splitter->Next(text, begin, match, &piece);
    EXPECT_OK(status);
    if (!status.ok()) break;
    if (piece.begin > begin) pieces.push_back("[" + text.substr(begin, piece.begin - begin) + "]");
    if (piece.end > piece.begin) {
      pieces.push_back(text.substr(piece.begin, piece.end - piece.begin));
    }
  }
  return pieces;
}

TEST(SplitPattern, KeepsWhatMeansTheSameInBothLibraries) {
  EXPECT_THAT(Pieces(R"(\p{Lu}\p{Ll}*|\d{1,3}| ?[^\s\p{L}\p{N}]+)", "Ab1234 !?c"),
              ElementsAre("Ab", "123", "4", " !?", "[c]"));
  EXPECT_THAT(Pieces(R"((?:ab|a(b)c)++|[x\-\]y]+|\.)", "abab.x-]yab"),
              ElementsAre("abab", ".", "x-]y", "ab"));
  EXPECT_THAT(Pieces("(?i:'s|'re)", "'S'rE's"), ElementsAre("'S", "'rE", "'s"));
  EXPECT_THAT(Pieces(R"(a(?=b)|b(?!a))", "abba"), ElementsAre("a", "b", "[ba]"));
  EXPECT_THAT(Pieces(R"(日本?|é+)", "日日本éé"), ElementsAre("日", "日本", "éé"));
}

// PCRE2's own \s has the Mongolian vowel separator, which is no white space since Unicode 6.3.
TEST(SplitPattern, WhiteSpaceIsThatOfUnicode) {
  EXPECT_THAT(Pieces(R"(\s+|\S+)", "a \u00a0\u2028\u0085b\u180ec"),
              ElementsAre("a", " \u00a0\u2028\u0085", "b\u180ec"));
  EXPECT_THAT(Pieces(R"([^\s]+|[\s]+)", "\u180e\t"), ElementsAre("\u180e", "\t"));
}

TEST(SplitPattern, EveryKnownPatternIsAllowed) {
  for (const std::string_view pattern :
       {kGpt2Pattern, kCl100kPattern, kQwen2Pattern, kO200kPattern, kTekkenPattern,
        kThreeDigitsPattern, kDigitPattern, kNumberPattern, kHanAndKanaPattern, kDeepSeekPattern}) {
    EXPECT_OK(Pcre2Pattern(pattern)) << pattern;
  }
}

TEST(SplitPattern, NamesWhatMeansSomethingElseAndWhere) {
  const std::pair<const char*, const char*> refused[] = {{"", "has 0 bytes"},
                                                         {"a.", "'.' at byte 1"},
                                                         {"^a", "'^' at byte 0"},
                                                         {"a$", "'$' at byte 1"},
                                                         {R"(\w+)", R"('\w' at byte 0)"},
                                                         {R"(a\b)", R"('\b' at byte 1)"},
                                                         {R"(\h)", R"('\h')"},
                                                         {R"((a)\1)", R"('\1' at byte 3)"},
                                                         {R"(\p{Han}+)", R"('\p{Han}' at byte 0)"},
                                                         {R"(\p{^L})", R"('\p{^L}')"},
                                                         {R"(\pL)", R"('\pL')"},
                                                         {"a\\", "nothing follows"},
                                                         {"[a[b]]", "'[b' at byte 2"},
                                                         {"[[:alpha:]]", "'[:' at byte 1"},
                                                         {"[a&&b]", "'&&' at byte 2"},
                                                         {"[]a]", "']' at byte 1"},
                                                         {"[abc", "a class without its ]"},
                                                         {R"([\s-z])", "'-' at byte 3"},
                                                         {"a]", "']' at byte 1"},
                                                         {"(?<=a)b", "'(?<=' at byte 0"},
                                                         {"(?>a)", "'(?>a' at byte 0"},
                                                         {"(?m:a)", "'(?m:' at byte 0"},
                                                         {"(?i)a", "'(?i)' at byte 0"},
                                                         {"(*UTF)a", "'(*' at byte 0"},
                                                         {"(?i:(a))", "'(' at byte 4"},
                                                         {"(?i:straSSe)", "'st' at byte 4"},
                                                         {"(?i:é)", "at byte 4 (only ASCII"},
                                                         {R"((?i:\p{Lu}))", "not within"},
                                                         {R"(\p{N}{1,3}+)", "'+' at byte 10"},
                                                         {"a{2}?", "'?' at byte 4"},
                                                         {"a{,3}", "'{,3}' at byte 1"},
                                                         {"a{b}", "'{b}' at byte 1"},
                                                         {"a{", "'{' at byte 1"},
                                                         {"a+++", "'+' at byte 3"}};
  for (const auto& [pattern, why] : refused) {
    EXPECT_THAT(Pcre2Pattern(pattern), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)))
        << pattern;
  }
  EXPECT_OK(Pcre2Pattern(std::string(kLongestPattern, 'a')));
  EXPECT_THAT(
      Pcre2Pattern(std::string(kLongestPattern + 1, 'a')),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has 4097 bytes (from 1 to 4096)")));
}

TEST(Splitter, RefusesPatternsThatAreNoneOrMatchNothing) {
  EXPECT_THAT(Splitter::Make("(a", nullptr), StatusIs(absl::StatusCode::kInvalidArgument,
                                                      HasSubstr("missing closing parenthesis")));
  EXPECT_THAT(Splitter::Make("a*", nullptr),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("matches the empty text")));
  // A lookahead alone matches nothing, but not in the empty text.
  const auto splitter = Splitter::Make("(?=a)", nullptr);
  ASSERT_OK(splitter);
  Splitter::Piece piece;
  EXPECT_THAT(splitter->Next("bba", 0, splitter->NewMatch(), &piece),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nothing at byte 2")));
}

TEST(Splitter, APatternThatTakesForEverIsAnError) {
  const auto splitter = Splitter::Make("(a+)+(?!a)[bc]", nullptr);
  ASSERT_OK(splitter);
  Splitter::Piece piece;
  EXPECT_THAT(splitter->Next(std::string(200, 'a'), 0, splitter->NewMatch(), &piece),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("fails from byte 0")));
}

// More than the stack of compiled code has room for.
TEST(Splitter, ALongMatchOfGroupsIsFound) {
  const auto splitter = Splitter::Make("(?:(a)|(b)c?)+", nullptr);
  ASSERT_OK(splitter);
  std::string text;
  for (int i = 0; i < 20000; ++i) text += i % 3 == 0 ? "a" : "bc";
  Splitter::Piece piece;
  EXPECT_OK(splitter->Next(text, 0, splitter->NewMatch(), &piece));
  EXPECT_EQ(piece.end, text.size());
}

}  // namespace
}  // namespace nsa::train
