#include "common/chat/chat_template.h"

#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clean_text.h"
#include "common/base/job_file.h"
#include "common/base/json_shape.h"
#include "common/base/status.h"
#include "common/chat/template_text.h"
#include "nlohmann/json.hpp"

namespace nsa {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kAdvice[] = "choose the format by its name, e.g. chatml, if the model may learn it";

bool Has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// The first of some parts that a template has; empty if it has none.
std::string_view FirstOf(std::string_view text, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) {
    if (Has(text, part)) return part;
  }
  return {};
}

absl::Status Differs(std::string_view family, std::string_view how) {
  return absl::InvalidArgumentError(
      absl::StrFormat("chat_template: resembles %s, but %s (a variant that is not known); %s",
                      family, how, kAdvice));
}

absl::StatusOr<ChatFormat> OfChatMl(std::string_view text, const ChatEnds& ends) {
  const std::string_view foreign =
      FirstOf(text, {"<|im_sep|>", "<|im_middle|>", "strftime_now", "<|im_user|>"});
  if (!foreign.empty()) return Differs("chatml", absl::StrFormat("has %s", foreign));
  if (FirstOf(text, {R"(<|im_end|>\n)", R"(<|im_end|>'+'\n')", "<|im_end|>\n"}).empty()) {
    return Differs("chatml", "has no line feed behind <|im_end|>");
  }
  NSA_ASSIGN_OR_RETURN(ChatFormat format, NamedChatFormat("chatml", ends));
  if (Has(text, "bos_token")) {
    if (ends.bos.empty()) return Differs("chatml", "the tokenizer has no bos_token");
    format.begin = {{.text = ends.bos, .control = true}};
  }
  format.default_system = TextBetween(text, R"(<|im_start|>system\n)", "<|im_end|>");
  if (Has(text, R"('\n<think>\n'+reasoning_content)")) {
    const bool opened = Has(text, R"(<|im_start|>assistant\n<think>\n)");
    format.thoughts = opened ? Thoughts::kOpened : Thoughts::kLast;
  } else if (Has(text, "</think>")) {
    return Differs("chatml", "has </think> in another way than Qwen3");
  }
  if (!FirstOf(text, {"['content']|trim+'<|im_end|>", "content|trim+'<|im_end|>"}).empty()) {
    for (ChatTurn* turn : {&format.system, &format.user, &format.assistant}) turn->trim = true;
  }
  return format;
}

// The date of today in a template of Llama 3.1 or later.
std::optional<std::string_view> DateOf(std::string_view text) {
  constexpr std::string_view kDate = "date_string='";
  const size_t at = text.find(kDate);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view date = text.substr(at + kDate.size());
  return date.substr(0, date.find('\''));
}

absl::StatusOr<ChatFormat> OfLlama3(std::string_view text, const ChatEnds& ends) {
  if (!Has(text, R"('<|end_header_id|>\n\n'+message['content']|trim+'<|eot_id|>')")) {
    return Differs("llama3", R"(does not print '<|end_header_id|>\n\n' and a trimmed message)");
  }
  NSA_ASSIGN_OR_RETURN(ChatFormat format, NamedChatFormat("llama3", ends));
  if (!Has(text, "bos_token")) format.begin.clear();
  if (!Has(text, "Cutting Knowledge Date")) return format;
  const std::optional<std::string> known = TextBetween(text, "Cutting Knowledge Date: ", R"(\n)");
  const std::optional<std::string_view> today = DateOf(text);
  if (!known || !today || !Has(text, R"('Today Date: '+date_string+'\n\n')")) {
    return Differs("llama3", "tells the dates in another way than Llama 3.1");
  }
  format.default_system = "";
  format.system.before.back().text +=
      absl::StrFormat("Cutting Knowledge Date: %s\nToday Date: %s\n\n", *known, *today);
  return format;
}

absl::StatusOr<ChatFormat> OfLlama2(std::string_view text, const ChatEnds& ends) {
  for (const std::string_view part :
       {R"('<<SYS>>\n'+system_message+'\n<</SYS>>\n\n'+message['content'])",
        "bos_token+'[INST] '+content|trim+' [/INST]'", "' '+content|trim+' '+eos_token"}) {
    if (!Has(text, part)) return Differs("llama2", absl::StrFormat("does not print %s", part));
  }
  return NamedChatFormat("llama2", ends);
}

// What the templates of Mistral's models print around questions.
struct Brackets {
  std::string_view before, behind;
};
std::optional<Brackets> BracketsOf(std::string_view text) {
  for (const std::string_view before : {" [INST] ", "[INST] ", "[INST]"}) {
    for (const std::string_view behind : {" [/INST]", "[/INST]"}) {
      if (Has(text, absl::StrFormat("'%s'+message['content']+'%s'", before, behind))) {
        return Brackets{before, behind};
      }
    }
  }
  return std::nullopt;
}

// A text with a marker, and spaces around it, as pieces.
std::vector<ChatPiece> Spaced(std::string_view text, std::string_view marker) {
  const size_t at = text.find(marker);
  std::vector<ChatPiece> pieces = {{.text = std::string(text.substr(0, at))},
                                   {.text = std::string(marker), .control = true},
                                   {.text = std::string(text.substr(at + marker.size()))}};
  std::erase_if(pieces, [](const ChatPiece& piece) { return piece.text.empty(); });
  return pieces;
}

absl::StatusOr<ChatFormat> OfMistral(std::string_view text, const ChatEnds& ends) {
  if (Has(text, "[SYSTEM_PROMPT]")) return Differs("mistral", "has [SYSTEM_PROMPT]");
  const std::optional<Brackets> brackets = BracketsOf(text);
  if (!brackets) return Differs("mistral", "prints no message between [INST] and [/INST]");
  NSA_ASSIGN_OR_RETURN(ChatFormat format, NamedChatFormat("mistral", ends));
  format.user.before = Spaced(brackets->before, "[INST]");
  format.user.behind = Spaced(brackets->behind, "[/INST]");
  const std::string_view answer =
      FirstOf(text, {"message['content']|trim+eos_token", "message['content']+eos_token"});
  if (answer.empty()) return Differs("mistral", "prints no message before eos_token");
  format.assistant.trim = Has(answer, "trim");
  if (!Has(text, absl::StrFormat("' '+%s", answer))) format.assistant.before.clear();
  if (Has(text, absl::StrFormat("%s+' '", answer)))
    format.assistant.behind.push_back({.text = " "});
  if (!Has(text, R"('+system_message+'\n\n'+message['content']+')")) {
    format.system_place = SystemPlace::kNone;
  } else if (Has(text, "loop.lastandsystem_messageisdefined")) {
    format.system_place = SystemPlace::kLastUser;
  }
  return format;
}

absl::StatusOr<ChatFormat> OfZephyr(std::string_view text, const ChatEnds& ends) {
  for (const std::string_view role : {"user", "assistant", "system"}) {
    const std::string part = absl::StrFormat(R"('<|%s|>\n'+message['content']+eos_token)", role);
    if (!Has(text, part)) return Differs("zephyr", absl::StrFormat("does not print %s", part));
  }
  NSA_ASSIGN_OR_RETURN(ChatFormat format, NamedChatFormat("zephyr", ends));
  if (Has(text, "eos_token}}\n")) return format;
  for (ChatTurn* turn : {&format.system, &format.user, &format.assistant}) turn->behind.pop_back();
  return format;
}

// A template of a tokenizer_config.json: a text, or a list of texts with names.
absl::StatusOr<std::string> TemplateIn(const json& config) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return std::string();
  if (found->is_string()) return found->get<std::string>();
  for (const json& entry : found->is_array() ? *found : json::array()) {
    if (!entry.is_object() || entry.value("name", json()) != "default") continue;
    const json text = entry.value("template", json());
    if (text.is_string()) return text.get<std::string>();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("chat_template: ", CutText(CleanLine(found->dump()), 60),
                   " (a text, or a list with one named default); take the published file"));
}

// A token of a tokenizer_config.json: its text, an object with it as content, or null.
absl::StatusOr<std::string> TokenIn(const json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return std::string();
  const json& text =
      found->is_object() && found->contains("content") ? (*found)["content"] : *found;
  if (text.is_string()) return text.get<std::string>();
  return absl::InvalidArgumentError(absl::StrCat(key, ": ", CutText(CleanLine(found->dump()), 60),
                                                 " (a token); take the published file"));
}

absl::StatusOr<ChatTemplate> TemplateOfConfig(const std::string& text) {
  const json config = IsShallow(text) && IsAsLargeAsItLooks(text)
                          ? json::parse(text, nullptr, /*allow_exceptions=*/false)
                          : json();
  if (!config.is_object()) {
    return absl::InvalidArgumentError(
        "not a JSON object (at most 100 levels deep); take the published file");
  }
  ChatTemplate chat;
  NSA_ASSIGN_OR_RETURN(chat.text, TemplateIn(config));
  NSA_ASSIGN_OR_RETURN(chat.ends.bos, TokenIn(config, "bos_token"));
  NSA_ASSIGN_OR_RETURN(chat.ends.eos, TokenIn(config, "eos_token"));
  return chat;
}

}  // namespace

absl::StatusOr<ChatTemplate> ReadChatTemplate(const fs::path& folder) {
  ChatTemplate chat;
  if (const fs::path path = folder / "tokenizer_config.json"; JobPathExists(path)) {
    NSA_ASSIGN_OR_RETURN(const std::string text, ReadJobFile(path, kLargestChatFile));
    absl::StatusOr<ChatTemplate> read = TemplateOfConfig(text);
    if (!read.ok()) return Annotate(read.status(), path.string());
    chat = *std::move(read);
  }
  if (const fs::path path = folder / "chat_template.jinja"; JobPathExists(path)) {
    NSA_ASSIGN_OR_RETURN(chat.text, ReadJobFile(path, kLargestChatFile));
  }
  return chat;
}

absl::StatusOr<ChatFormat> FormatOfTemplate(const ChatTemplate& chat) {
  if (chat.text.empty()) return NamedChatFormat("chatml", chat.ends);
  const std::string text = CanonicalTemplate(chat.text);
  if (Has(text, "<|im_start|>")) return OfChatMl(text, chat.ends);
  if (Has(text, "<|start_header_id|>")) return OfLlama3(text, chat.ends);
  if (Has(text, "<<SYS>>")) return OfLlama2(text, chat.ends);
  if (Has(text, "[INST]")) return OfMistral(text, chat.ends);
  if (Has(text, "<|user|>")) return OfZephyr(text, chat.ends);
  return absl::InvalidArgumentError(
      absl::StrFormat("chat_template: '%s' (of none of the families %s); %s",
                      CleanLine(CutText(chat.text, 60)), ChatFormatWords(), kAdvice));
}

absl::StatusOr<ChatFormat> ReadChatFormat(const fs::path& folder) {
  NSA_ASSIGN_OR_RETURN(const ChatTemplate chat, ReadChatTemplate(folder));
  absl::StatusOr<ChatFormat> format = FormatOfTemplate(chat);
  if (!format.ok()) return Annotate(format.status(), folder.string());
  return format;
}

}  // namespace nsa
