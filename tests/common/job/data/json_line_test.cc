#include "common/job/data/json_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace nsa {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

std::string TextOf(std::string_view line, std::string_view field = "text") {
  const auto text = TextOfJsonLine(line, field);
  EXPECT_OK(text);
  return text.ok() ? text->value_or("(null)") : "";
}

TEST(JsonLine, HasTheTextOfItsField) {
  EXPECT_EQ(TextOf(R"({"id": 1, "text": "a \u00e9"})"), "a é");
  EXPECT_EQ(TextOf(R"({"id": 1, "body": "b", "text": 7})", "body"), "b");
  EXPECT_EQ(TextOf("\xEF\xBB\xBF{\"text\": \"a\"}\r"), "a");
}

TEST(JsonLine, HasATextANumberOrABoolInAField) {
  const auto line = JsonLine::Parse(
      R"({"a": "x", "b": 7, "c": -2.50, "d": true, "e": null, "f": [1], "g": {"h": false}})");
  ASSERT_OK(line);
  const auto value = [&](std::string_view field) {
    const std::optional<FieldValue> found = line->ValueOf(field);
    return found ? absl::StrCat(found->number ? "number " : "", found->text) : "none";
  };
  EXPECT_EQ(value("a"), "x");
  EXPECT_EQ(value("b"), "number 7");
  EXPECT_EQ(value("c"), "number -2.5");
  EXPECT_EQ(value("d"), "true");
  EXPECT_EQ(value("g.h"), "false");
  for (const char* field : {"e", "f", "g", "i", "a.b"}) EXPECT_EQ(value(field), "none") << field;
}

TEST(JsonLine, WithoutATextIsNotAFault) {
  EXPECT_EQ(TextOf(R"({"text": null})"), "(null)");
  EXPECT_EQ(TextOf(R"({"text": NaN})"), "(null)");
  EXPECT_EQ(TextOf(R"({"doc": null})", "doc.text"), "(null)");
  EXPECT_EQ(TextOf(R"({"text": []})"), "(null)");
  EXPECT_EQ(TextOf(R"({"text": [null]})"), "(null)");
}

TEST(JsonLine, ANameWithDotsIsAFieldWithinOthersAndAListIsOneText) {
  EXPECT_EQ(TextOf(R"({"doc": {"text": "a"}})", "doc.text"), "a");
  EXPECT_EQ(TextOf(R"({"a": {"b": {"c": "d"}}})", "a.b.c"), "d");
  EXPECT_EQ(TextOf(R"({"doc.text": "a", "doc": {"text": "b"}})", "doc.text"), "a");
  EXPECT_EQ(TextOf(R"({"doc": {"texts": ["a", null, "", "b"]}})", "doc.texts"), "a\n\nb");
}

TEST(JsonLine, HasNumbersAsPythonWritesThem) {
  EXPECT_EQ(TextOf(R"({"score": NaN, "text": "NaN \" -Infinity", "x": [Infinity, -Infinity]})"),
            "NaN \" -Infinity");
  // More than a double can hold.
  EXPECT_EQ(TextOf(absl::StrCat(R"({"score": 1e400, "x": [-1E+999,)", std::string(310, '9'),
                                R"(], "text": "1e400"})")),
            "1e400");
  EXPECT_EQ(TextOf(R"({"score": 1.5e3, "x": NaN, "text": "a"})"), "a");
}

TEST(JsonLine, HalfASurrogatePairBecomesTheReplacementCharacter) {
  EXPECT_EQ(TextOf(R"({"text": "a\ud800b\uDC00\ud83d\ude00\ud800\ud800\\ud800"})"),
            "a\uFFFDb\uFFFD\U0001F600\uFFFD\uFFFD\\ud800");
}

TEST(JsonLine, RecordSeparatorsArePassed) {
  EXPECT_EQ(TextOf("\x1e{\"text\": \"a\"}"), "a");
  EXPECT_EQ(TextOf("\x1e\x1e {\"text\": \"a\"}"), "a");
  for (const char* line : {"", " \t\r", "\x1e", "\x1e \r"}) EXPECT_TRUE(IsBlankJsonLine(line));
  EXPECT_FALSE(IsBlankJsonLine("\x1e{"));
}

TEST(JsonLine, SaysWhatIsWrongWithItAndWhatToDo) {
  const struct {
    const char* line;
    const char* fault;
    const char* fix;
  } bad[] = {
      {"{\"text\": \"tw",
       "not valid JSON: '{\\\"text\\\": \\\"tw' (each line must be a JSON object",
       "; fix the file, or set data.source to what it holds"},
      {"{\"text\": \"a\"} x", "not valid JSON", "what it holds"},
      {"{\"text\": \"\xff\"}", "not valid JSON", "what it holds"},
      {"{\"text\": \"\\ud8", "not valid JSON", "what it holds"},
      {"{\"text\": NaNa}", "not valid JSON", "what it holds"},
      {"{", "not valid JSON",
       "; if each object takes several lines, jq -c . FILE > NEW makes one of them"},
      {"[{\"text\": \"a\"}]", "a JSON array, not an object",
       "; if the file is one array, jq -c '.[]' FILE > NEW makes JSON lines of it"},
      {"[", "a JSON array, not an object", "makes JSON lines of it"},
      {"7", "not a JSON object", "what it holds"},
      {"{\"body\": \"a\"}", "no field 'text' (fields: body)",
       "; set data.text_field, or fix the file"},
      {"{}", "no field 'text' (fields: none)", "fix the file"},
      {"{\"text\": 7}", "the field 'text' is not a string", "what it holds"},
      {"{\"text\": [\"a\", 7]}", "the field 'text' is not a string", "what it holds"},
  };
  for (const auto& one : bad) {
    EXPECT_THAT(TextOfJsonLine(one.line, "text"),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(StartsWith(one.fault), EndsWith(one.fix))));
  }
  EXPECT_THAT(TextOfJsonLine(R"({"doc": "a"})", "doc.text"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       StartsWith("no field 'doc.text' (fields: doc)")));
}

TEST(JsonLine, AConversationIsAListOfMessagesOrAQuestionAndItsAnswer) {
  const std::vector<ChatMessage> talk = {{"user", "Hi"}, {"assistant", "Yo"}};
  for (const char* const line : {R"({"messages": [{"role": "user", "content": "Hi", "id": 1},
                         {"content": "Yo", "role": "assistant"}]})",
                                 R"({"completion": "Yo", "prompt": "Hi", "more": NaN})"}) {
    const auto messages = MessagesOfJsonLine(line, "messages");
    ASSERT_OK(messages.status());
    ASSERT_TRUE(messages->has_value()) << line;
    EXPECT_EQ(TextOfMessages(**messages), TextOfMessages(talk));
  }
  EXPECT_EQ(TextOfMessages(talk), "user: Hi\nassistant: Yo");
  for (const char* const line :
       {R"({"messages": null})", R"({"prompt": "Hi", "completion": null})"}) {
    const auto messages = MessagesOfJsonLine(line, "messages");
    ASSERT_OK(messages.status());
    EXPECT_FALSE(messages->has_value()) << line;
  }
  EXPECT_THAT(MessagesOfJsonLine(R"({"prompt": "Hi"})", "messages"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       StartsWith("no field 'messages', nor prompt and completion (fields: prom")));
  EXPECT_THAT(
      MessagesOfJsonLine(R"({"messages": [{"role": "user"}]})", "messages"),
      StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("messages[0] is not an obj")));
}

// 17 MiB of empty lists would take more than 350 MiB, and a line may have 256 MiB.
TEST(JsonLine, ALargeLineIsTextAndNotValues) {
  std::string lists = R"({"text": "a", "more": [[])";
  while (lists.size() < (17 << 20)) lists += ",[],[],[],[],[],[],[],[]";
  EXPECT_THAT(TextOfJsonLine(lists + "]}", "text"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("with too many values")));
  const auto text =
      TextOfJsonLine(absl::StrCat(R"({"text": ")", std::string(17 << 20, ','), R"("})"), "text");
  ASSERT_OK(text.status());
  EXPECT_EQ((*text)->size(), size_t{17} << 20);
}

}  // namespace
}  // namespace nsa
