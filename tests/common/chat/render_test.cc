// Conversations and prompts in the named formats: pieces, markers, answers; refusals.
#include "common/chat/render.h"

#include <algorithm>
#include <string>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace nsa {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Messages = std::vector<ChatMessage>;

ChatPiece Marker(std::string text) { return {.text = std::move(text), .control = true}; }
ChatPiece Text(std::string text) { return {.text = std::move(text)}; }
ChatPiece Answer(ChatPiece piece) {
  piece.answer = true;
  return piece;
}

ChatFormat Format(std::string_view name) { return NamedChatFormat(name).value(); }

std::string TextOf(const std::vector<ChatPiece>& pieces, bool only_answers = false) {
  std::string text;
  for (const ChatPiece& piece : pieces) {
    if (piece.answer || !only_answers) text += piece.text;
  }
  return text;
}

TEST(RenderChat, PiecesOfChatMl) {
  const auto pieces =
      RenderConversation(Format("chatml"), Messages{{"user", "Hi"}, {"assistant", "Hello"}});
  ASSERT_OK(pieces.status());
  EXPECT_THAT(*pieces,
              ElementsAre(Marker("<|im_start|>"), Text("user\nHi"), Marker("<|im_end|>"),
                          Text("\n"), Marker("<|im_start|>"), Text("assistant\n"),
                          Answer(Text("Hello")), Answer(Marker("<|im_end|>")), Text("\n")));
}

TEST(RenderChat, APromptEndsWhereTheAnswerBegins) {
  const auto llama = RenderPrompt(Format("llama3"), Messages{{"user", " Hi\u3000"}});
  ASSERT_OK(llama.status());
  EXPECT_THAT(*llama, ElementsAre(Marker("<|begin_of_text|>"), Marker("<|start_header_id|>"),
                                  Text("user"), Marker("<|end_header_id|>"), Text("\n\nHi"),
                                  Marker("<|eot_id|>"), Marker("<|start_header_id|>"),
                                  Text("assistant"), Marker("<|end_header_id|>"), Text("\n\n")));
  const auto mistral = RenderPrompt(Format("mistral"), Messages{{"user", "Hi"}});
  ASSERT_OK(mistral.status());
  EXPECT_THAT(*mistral,
              ElementsAre(Marker("<s>"), Marker("[INST]"), Text(" Hi "), Marker("[/INST]")));
}

// So the tokens of a prompt are those that the model saw in training.
TEST(RenderChat, APromptIsTheBeginningOfTheConversationThatAnswersIt) {
  const Messages messages = {{"system", "S"},    {"user", "A"}, {"assistant", "B"}, {"user", "C"},
                             {"assistant", "D"}, {"user", "E"}, {"assistant", "F"}};
  for (const std::string_view name : kChatFormatNames) {
    const auto all = RenderConversation(Format(name), messages);
    ASSERT_OK(all.status());
    for (const size_t asked : {size_t{2}, size_t{4}, size_t{6}}) {
      const auto prompt =
          RenderPrompt(Format(name), Messages(messages.begin(), messages.begin() + asked));
      ASSERT_OK(prompt.status());
      ASSERT_LT(prompt->size(), all->size());
      EXPECT_TRUE(std::equal(prompt->begin(), prompt->end(), all->begin())) << name << asked;
      EXPECT_TRUE((*all)[prompt->size()].answer) << name << asked;
    }
  }
}

TEST(RenderChat, AnAnswerHasTheMarkerThatEndsIt) {
  for (const std::string_view name : kChatFormatNames) {
    const ChatFormat format = Format(name);
    const auto pieces =
        RenderConversation(format, Messages{{"user", "Q"}, {"assistant", "Because"}});
    ASSERT_OK(pieces.status());
    const std::string answer = TextOf(*pieces, /*only_answers=*/true);
    EXPECT_THAT(answer, HasSubstr("Because")) << name;
    EXPECT_TRUE(answer.ends_with(format.stops.front())) << name << ": " << answer;
    EXPECT_EQ(answer.find('Q'), std::string::npos) << name;
  }
}

TEST(RenderChat, TheSpellingOfAMarkerWithinAMessageStaysText) {
  const auto pieces = RenderPrompt(Format("chatml"), Messages{{"user", "<|im_end|>"}});
  ASSERT_OK(pieces.status());
  EXPECT_EQ((*pieces)[1], Text("user\n<|im_end|>"));
}

TEST(RenderChat, TheTokenizersOwnEndsReplaceThoseOfTheFormat) {
  const auto format = NamedChatFormat("zephyr", {.bos = "<bos>", .eos = "<eos>"});
  ASSERT_OK(format.status());
  EXPECT_THAT(format->stops, ElementsAre("<eos>"));
  EXPECT_EQ(TextOf(RenderPrompt(*format, Messages{{"user", "Hi"}}).value()),
            "<|user|>\nHi<eos>\n<|assistant|>\n");
  EXPECT_THAT(NamedChatFormat("chatml", {.eos = "</s>"})->stops,
              ElementsAre("<|im_end|>", "<|endoftext|>", "</s>"));
}

TEST(RenderChat, AnUnknownFormatNamesTheKnownOnes) {
  EXPECT_THAT(NamedChatFormat("alpaca"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("'alpaca' (chatml, llama3, llama2, mistral, zephyr)")));
}

// Each bad conversation is refused with the number of the message at fault.
TEST(RenderChat, RefusesBadConversations) {
  const struct {
    std::string_view format;
    Messages messages;
    std::string_view error;
  } cases[] = {
      {"chatml", {}, "messages: none"},
      {"chatml", {{"user", "Q"}, {"tool", "x"}, {"assistant", "A"}}, "messages[1].role: 'tool'"},
      {"chatml", {{"user", "Q"}, {"system", "S"}, {"assistant", "A"}}, "messages[1].role: system"},
      {"chatml", {{"user", "Q"}, {"assistant", " \n\u00a0"}}, "messages[1].content: empty"},
      {"chatml", {{"system", ""}, {"user", "Q"}, {"assistant", "A"}}, "messages[0].content: empty"},
      {"chatml", {{"user", "Q"}, {"user", "R"}}, "messages[1].role: user (no message is of the"},
      {"llama2",
       {{"user", "Q"}, {"user", "R"}, {"assistant", "A"}},
       "messages[1].role: user (assistant here"},
      {"mistral",
       {{"user", "Q"}, {"assistant", "A"}, {"assistant", "B"}},
       "messages[2].role: assistant (user here"},
      {"mistral", {{"system", "S"}, {"assistant", "A"}}, "messages[1].role: assistant (user here"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(RenderConversation(Format(c.format), c.messages),
                StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(std::string(c.error))));
  }
  EXPECT_THAT(RenderPrompt(Format("chatml"), Messages{{"user", "Q"}, {"assistant", "A"}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       StartsWith("messages[1].role: assistant (the last message")));
}

TEST(RenderChat, TwoQuestionsInARowWhereTheFormatHasThem) {
  EXPECT_OK(RenderConversation(Format("chatml"),
                               Messages{{"user", "Q"}, {"user", "R"}, {"assistant", "A"}})
                .status());
}

}  // namespace
}  // namespace nsa
