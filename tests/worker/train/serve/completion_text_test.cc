#include "worker/train/serve/completion_text.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"

namespace nsa::train::serve {
namespace {

using testing::ElementsAre;

AnswerToken Token(const std::string& bytes) {
  return {.bytes = bytes, .name = bytes, .logprob = -1};
}

CompletionText TextWith(std::vector<std::string> stops, bool tokens = false) {
  return CompletionText(0, std::move(stops), 0, tokens);
}

// The pieces of a text that comes in these tokens.
std::vector<std::string> Pieces(std::vector<std::string> stops,
                                const std::vector<std::string>& tokens) {
  CompletionText text = TextWith(std::move(stops));
  std::vector<std::string> pieces;
  for (const std::string& token : tokens) {
    if (text.stopped()) break;
    text.Add(Token(token));
    pieces.push_back(text.Take().text);
  }
  pieces.push_back(text.Finish().text);
  return pieces;
}

TEST(CompletionText, GivesEachTokenAtOnceWhereNothingSpeaksAgainstIt) {
  EXPECT_THAT(Pieces({}, {"To", " be", "\n"}), ElementsAre("To", " be", "\n", ""));
}

TEST(CompletionText, HoldsACharacterBackUntilItsLastByte) {
  EXPECT_THAT(Pieces({}, {"a\xc3", "\xa9", "\xf0", "\x9f\x98", "\x80", "b"}),
              ElementsAre("a", "é", "", "", "😀", "b", ""));
  EXPECT_THAT(Pieces({}, {"\xff", "x", "\xe2\x82"}), ElementsAre("\ufffd", "x", "", "\ufffd\ufffd"))
      << "bytes that are no character are replaced one by one";
}

TEST(CompletionText, NeverShowsAStopStringHoweverItIsCut) {
  const std::string whole = "one END two";
  for (size_t length = 1; length <= whole.size(); ++length) {
    std::vector<std::string> tokens;
    for (size_t at = 0; at < whole.size(); at += length) tokens.push_back(whole.substr(at, length));
    std::string shown;
    for (const std::string& piece : Pieces({"END"}, tokens)) shown += piece;
    EXPECT_EQ(shown, "one ") << length;
  }
}

TEST(CompletionText, HoldsBackOnlyWhatMayBecomeAStopString) {
  EXPECT_THAT(Pieces({"END", "\n\n"}, {"a E", "N", "X", "\n", "b\n"}),
              ElementsAre("a ", "", "ENX", "", "\nb", "\n"));
  EXPECT_THAT(Pieces({"aab"}, {"a", "a", "a", "b"}), ElementsAre("", "", "a", "", ""))
      << "the beginning of a stop string may repeat itself";
}

TEST(CompletionText, EndsBeforeTheFirstOfSeveralStopStrings) {
  CompletionText text = TextWith({"three", "two"});
  text.Add(Token("one two three"));
  EXPECT_TRUE(text.stopped());
  const AnswerPiece piece = text.Finish();
  EXPECT_EQ(piece.text, "one ");
  EXPECT_EQ(piece.finish_reason, "stop");
}

TEST(CompletionText, EndsByLengthWithWhatWasHeldBack) {
  CompletionText text = TextWith({"END"});
  text.Add(Token("xEN"));
  EXPECT_EQ(text.Take().text, "x");
  const AnswerPiece piece = text.Finish();
  EXPECT_EQ(piece.text, "EN");
  EXPECT_EQ(piece.finish_reason, "length");
}

TEST(CompletionText, DoesNotLookForStopStringsInThePrompt) {
  CompletionText text = TextWith({"END", "Dx"});
  text.AddPrompt(Token("the END"));
  EXPECT_FALSE(text.stopped());
  EXPECT_EQ(text.Take().text, "the END") << "nothing of a prompt is held back";
  text.Add(Token("x E"));
  EXPECT_FALSE(text.stopped()) << "nor where prompt and completion meet";
  EXPECT_EQ(text.Take().text, "x ");
  text.Add(Token("ND"));
  EXPECT_TRUE(text.stopped());
}

TEST(CompletionText, TokensComeWithTheTextThatTheyBeginIn) {
  CompletionText text = TextWith({"END"}, true);
  const auto names = [](const AnswerPiece& piece) {
    std::vector<std::string> all;
    for (const PlacedToken& placed : piece.tokens) all.push_back(placed.token.name);
    return all;
  };
  text.Add(Token("é"));
  text.Add(Token("xE"));
  AnswerPiece piece = text.Take();
  EXPECT_EQ(piece.text, "éx");
  EXPECT_THAT(names(piece), ElementsAre("é", "xE"));
  EXPECT_EQ(piece.tokens[1].offset, 1) << "in characters, not bytes";
  text.Add(Token("N"));
  text.Add(Token("N"));
  piece = text.Take();
  EXPECT_EQ(piece.text, "ENN");
  EXPECT_THAT(names(piece), ElementsAre("N", "N"));
  EXPECT_EQ(piece.tokens[0].offset, 3);
  text.Add(Token("y"));
  text.Add(Token("EN"));
  text.Add(Token("D"));
  piece = text.Finish();
  EXPECT_EQ(piece.text, "y");
  EXPECT_THAT(names(piece), ElementsAre("y")) << "those of the stop string are not there";
}

TEST(CompletionText, OffsetsCountThePromptThatIsNotShown) {
  CompletionText text(3, {}, 5, true);
  text.Add(Token("\xc3"));
  text.Add(Token("\xa9"));
  text.Add(Token("b"));
  const AnswerPiece piece = text.Finish();
  EXPECT_EQ(piece.choice, 3);
  ASSERT_EQ(piece.tokens.size(), 3u);
  EXPECT_EQ(piece.tokens[0].offset, 5);
  EXPECT_EQ(piece.tokens[1].offset, 5) << "the second byte of the same character";
  EXPECT_EQ(piece.tokens[2].offset, 6);
}

}  // namespace
}  // namespace nsa::train::serve
