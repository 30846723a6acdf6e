#include "common/chat/chat_format.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clean_text.h"

namespace nsa {
namespace {

ChatPiece Marker(std::string text) { return {.text = std::move(text), .control = true}; }
ChatPiece Text(std::string text) { return {.text = std::move(text)}; }
ChatPiece OfAnswer(ChatPiece piece) {
  piece.answer = true;
  return piece;
}

// What ends generation, without what is empty or there twice.
std::vector<std::string> Stops(std::vector<std::string> texts) {
  std::vector<std::string> stops;
  for (std::string& text : texts) {
    const bool known = std::find(stops.begin(), stops.end(), text) != stops.end();
    if (!text.empty() && !known) stops.push_back(std::move(text));
  }
  return stops;
}

ChatFormat ChatMl(const ChatEnds& ends) {
  const auto turn = [](const std::string& role) {
    return ChatTurn{.before = {Marker("<|im_start|>"), Text(role + "\n")},
                    .behind = {Marker("<|im_end|>"), Text("\n")}};
  };
  ChatFormat format{.system = turn("system"), .user = turn("user"), .assistant = turn("assistant")};
  format.assistant.behind[0].answer = true;
  format.stops = Stops({"<|im_end|>", "<|endoftext|>", ends.eos});
  return format;
}

ChatFormat Llama3(const ChatEnds& ends) {
  const auto turn = [](const std::string& role) {
    return ChatTurn{.before = {Marker("<|start_header_id|>"), Text(role),
                               Marker("<|end_header_id|>"), Text("\n\n")},
                    .behind = {Marker("<|eot_id|>")},
                    .trim = true};
  };
  ChatFormat format{
      .begin = {Marker(ends.bos.empty() ? "<|begin_of_text|>" : ends.bos)},
      .system = turn("system"),
      .user = turn("user"),
      .assistant = turn("assistant"),
  };
  format.assistant.behind[0].answer = true;
  format.stops = Stops({"<|eot_id|>", "<|end_of_text|>", ends.eos});
  return format;
}

// The ends of a text in the vocabularies of SentencePiece.
ChatEnds WithDefaults(ChatEnds ends) {
  if (ends.bos.empty()) ends.bos = "<s>";
  if (ends.eos.empty()) ends.eos = "</s>";
  return ends;
}

ChatFormat Llama2(const ChatEnds& ends) {
  return {.system = {.before = {Text("<<SYS>>\n")}, .behind = {Text("\n<</SYS>>\n\n")}},
          .user = {.before = {Marker(ends.bos), Text("[INST] ")},
                   .behind = {Text(" [/INST]")},
                   .trim = true},
          .assistant = {.before = {OfAnswer(Text(" "))},
                        .behind = {OfAnswer(Text(" ")), OfAnswer(Marker(ends.eos))},
                        .trim = true},
          .system_place = SystemPlace::kFirstUser,
          .alternates = true,
          .stops = {ends.eos}};
}

ChatFormat Mistral(const ChatEnds& ends) {
  return {
      .begin = {Marker(ends.bos)},
      .system = {.behind = {Text("\n\n")}},
      .user = {.before = {Marker("[INST]"), Text(" ")}, .behind = {Text(" "), Marker("[/INST]")}},
      .assistant = {.before = {OfAnswer(Text(" "))}, .behind = {OfAnswer(Marker(ends.eos))}},
      .system_place = SystemPlace::kFirstUser,
      .alternates = true,
      .stops = {ends.eos}};
}

ChatFormat Zephyr(const ChatEnds& ends) {
  const auto turn = [&](const std::string& role) {
    return ChatTurn{.before = {Marker(absl::StrCat("<|", role, "|>")), Text("\n")},
                    .behind = {Marker(ends.eos), Text("\n")}};
  };
  ChatFormat format{.system = turn("system"), .user = turn("user"), .assistant = turn("assistant")};
  format.assistant.behind[0].answer = true;
  format.stops = {ends.eos};
  return format;
}

}  // namespace

std::string ChatFormatWords() {
  std::string words;
  for (const std::string_view name : kChatFormatNames) {
    if (!words.empty()) words += ", ";
    words += name;
  }
  return words;
}

absl::StatusOr<ChatFormat> NamedChatFormat(std::string_view name, const ChatEnds& ends) {
  ChatFormat format;
  if (name == "chatml") {
    format = ChatMl(ends);
  } else if (name == "llama3") {
    format = Llama3(ends);
  } else if (name == "llama2") {
    format = Llama2(WithDefaults(ends));
  } else if (name == "mistral") {
    format = Mistral(WithDefaults(ends));
  } else if (name == "zephyr") {
    format = Zephyr(WithDefaults(ends));
  } else {
    return absl::InvalidArgumentError(absl::StrFormat("chat format: '%s' (%s); name one of these",
                                                      CleanLine(CutText(name, 40)),
                                                      ChatFormatWords()));
  }
  format.name = std::string(name);
  return format;
}

}  // namespace nsa
