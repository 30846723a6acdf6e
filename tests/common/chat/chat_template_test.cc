// Published templates: the format that is found for each renders what Jinja makes of it.
#include "common/chat/chat_template.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "common/chat/render.h"
#include "common/chat/template_text.h"
#include "nlohmann/json.hpp"
#include "tests/testing/paths.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Messages = std::vector<ChatMessage>;

const fs::path kFolder = fs::path(SourceDir()) / "tests/common/chat/templates";

std::string ReadAll(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }

ChatTemplate Published(const std::string& name) {
  ChatTemplate chat{.text = ReadAll(kFolder / (name + ".jinja")), .ends = {"<s>", "</s>"}};
  if (name.starts_with("llama3")) chat.ends = {"<|begin_of_text|>", "<|end_of_text|>"};
  return chat;
}

// The conversations of render.py.
struct Case {
  Messages messages;
  bool prompt;
};
std::vector<Case> Cases() {
  const Messages plain = {
      {"user", "Hi"}, {"assistant", "Hello!"}, {"user", " Why? "}, {"assistant", "Because.\n"}};
  const Messages thought = {{"user", "Hi"},
                            {"assistant", "<think>\nhm\n</think>\n\nHello!"},
                            {"user", "Why?"},
                            {"assistant", "<think>\nso\n</think>\n\nBecause."}};
  Messages told = plain;
  told.insert(told.begin(), {"system", " Be brief. "});
  const auto without_last = [](Messages messages) {
    messages.pop_back();
    return messages;
  };
  return {{plain, false},
          {told, false},
          {without_last(plain), true},
          {without_last(told), true},
          {thought, false},
          {without_last(thought), true}};
}

// What a format makes of a case; null if it refuses.
nlohmann::json Rendered(const ChatFormat& format, const Case& c) {
  const auto pieces =
      c.prompt ? RenderPrompt(format, c.messages) : RenderConversation(format, c.messages);
  if (!pieces.ok()) return nullptr;
  std::string text;
  for (const ChatPiece& piece : *pieces) text += piece.text;
  return text;
}

TEST(ChatTemplate, RendersWhatJinjaMakesOfPublishedTemplates) {
  auto wanted = nlohmann::json::parse(ReadAll(kFolder / "rendered.json"));
  // These templates drop the text of the system from conversations that end with an answer.
  wanted["mistral_v0_3"][1] =
      "<s>[INST] Hi[/INST] Hello!</s>[INST]  Be brief. \n\n Why? [/INST] Because.</s>";
  wanted["mistral_nemo"][1] =
      "<s>[INST]Hi[/INST]Hello!</s>[INST] Be brief. \n\n Why? [/INST]Because.</s>";
  EXPECT_EQ(wanted.size(), 12u);
  const std::vector<Case> cases = Cases();
  for (const auto& [name, texts] : wanted.items()) {
    const auto format = FormatOfTemplate(Published(name));
    ASSERT_OK(format.status()) << name;
    EXPECT_TRUE(name.starts_with(format->name) || name.starts_with("qwen")) << format->name;
    for (size_t i = 0; i < cases.size(); ++i) {
      EXPECT_EQ(Rendered(*format, cases[i]), texts[i]) << name << " " << i;
    }
  }
}

// Qwen3's thoughts are what the model writes: its prompt ends before them.
TEST(ChatTemplate, ThoughtsArePartOfTheAnswer) {
  ChatTemplate chat = Published("qwen3");
  const Messages messages = {{"user", "Hi"}, {"assistant", "Hello"}};
  const auto answer = [&] {
    const auto pieces = RenderConversation(FormatOfTemplate(chat).value(), messages).value();
    std::string text;
    for (const ChatPiece& piece : pieces) {
      if (piece.answer) text += piece.text;
    }
    return text;
  };
  EXPECT_EQ(answer(), "<think>\n\n</think>\n\nHello<|im_end|>");
  // The variant that always thinks has their beginning in its prompt.
  const size_t prompt = chat.text.find("{{- '<|im_start|>assistant\\n' }}");
  ASSERT_NE(prompt, std::string::npos);
  chat.text.replace(prompt, 32, "{{- '<|im_start|>assistant\\n<think>\\n' }}");
  EXPECT_EQ(answer(), "\n</think>\n\nHello<|im_end|>");
  EXPECT_EQ(RenderPrompt(FormatOfTemplate(chat).value(), Messages{{"user", "Hi"}})->back().text,
            "assistant\n<think>\n");
}

TEST(ChatTemplate, OneWayOfWriting) {
  EXPECT_EQ(CanonicalTemplate(R"({#- c #}a b{{- "[INST] " + message.content | trim -}}
{%- if x == 'it\'s "y"' %})"),
            R"(a b{{'[INST] '+message['content']|trim}}
{%ifx=='it\'s "y"'%})");
  EXPECT_EQ(CanonicalTemplate("{{ 'a\nb' + \"it's\" + m.content.strip() }}"),
            R"({{'a\nb'+'it\'s'+m['content']|trim}})");
  EXPECT_EQ(CanonicalTemplate("{{ '}}"), "{{'}}'}}");  // no end
  EXPECT_EQ(TextBetween(R"({{'<a>it\'s\n<b>'}})", "<a>", "<b>"), "it's\n");
  EXPECT_EQ(TextBetween("{{'<a>'+x+'<b>'}}", "<a>", "<b>"), std::nullopt);
}

TEST(ChatTemplate, VariantsOfChatMl) {
  ChatTemplate chat = Published("chatml");
  chat.text = "{{ bos_token }}" + chat.text;
  EXPECT_EQ(FormatOfTemplate(chat)->begin.at(0).text, "<s>");
  chat.ends.bos.clear();
  EXPECT_THAT(FormatOfTemplate(chat),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no bos_token")));
  EXPECT_EQ(FormatOfTemplate(Published("qwen2_5"))->default_system,
            "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.");
}

TEST(ChatTemplate, WhatIsNotKnownIsRefusedWithAdvice) {
  const struct {
    std::string_view text, error;
  } cases[] = {
      {"{{ '<start_of_turn>' + message['role'] }}", "of none of the families"},
      {"{{ '<|im_start|>user<|im_sep|>\\n<|im_end|>' }}", "resembles chatml, but has <|im_sep|>"},
      {"{{ '<|start_header_id|>' + x }}", "resembles llama3"},
      {"{{ '[SYSTEM_PROMPT]' + '[INST]' }}", "resembles mistral, but has [SYSTEM_PROMPT]"},
      {"{{ '[INST]' + q + '[/INST]' }}", "resembles mistral"},
      {"{{ '<<SYS>>' }}", "resembles llama2"},
      {"{{ '<|user|>\\n' + message['content'] + '<|end|>\\n' }}", "resembles zephyr"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(FormatOfTemplate({.text = std::string(c.text)}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(std::string(c.error)),
                               HasSubstr("choose the format by its name, e.g. chatml"))))
        << c.text;
  }
}

TEST(ChatTemplate, AFolderWithoutATemplateIsChatMl) {
  const TempDir folder;
  EXPECT_EQ(ReadChatFormat(folder.path())->name, "chatml");
  Write(folder.path() / "tokenizer_config.json", R"({"eos_token": {"content": "</s>"}})");
  EXPECT_EQ(ReadChatFormat(folder.path())->stops.back(), "</s>");
}

TEST(ChatTemplate, TheFileOfJinjaComesBeforeTheConfiguration) {
  const TempDir folder;
  nlohmann::json config = {{"bos_token", "<s>"},
                           {"eos_token", "</s>"},
                           {"chat_template",
                            {{{"name", "tool_use"}, {"template", "x"}},
                             {{"name", "default"}, {"template", Published("zephyr").text}}}}};
  Write(folder.path() / "tokenizer_config.json", config.dump());
  EXPECT_EQ(ReadChatFormat(folder.path())->name, "zephyr");
  Write(folder.path() / "chat_template.jinja", Published("llama2").text);
  EXPECT_EQ(ReadChatFormat(folder.path())->name, "llama2");
}

TEST(ChatTemplate, FilesThatAreNoneAreRefusedByName) {
  // As deep as the stack does not hold; the text makes up for the number of values.
  const std::string deep = R"({"text": ")" + std::string(2'000'000, 'a') + R"(", "eos_token": )" +
                           std::string(500'000, '[') + std::string(500'000, ']') + "}";
  for (const std::string& text : std::initializer_list<std::string>{
           "[", "[]", R"({"chat_template": 3})", R"({"chat_template": [{"name": "tool_use"}]})",
           R"({"bos_token": 1})", deep}) {
    const TempDir folder;
    Write(folder.path() / "tokenizer_config.json", text);
    EXPECT_THAT(ReadChatFormat(folder.path()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tokenizer_config.json: ")));
  }
}

}  // namespace
}  // namespace nsa
