// Finds the chat format of a published model.
//
// Hugging Face's tokenizers carry a program in the language Jinja, the chat_template, which renders
// conversations. It is not run here: the families of chat_format.h are recognized by the markers
// and the expressions that they print, and what varies within a family is read from the template:
//
//   chatml    a default text of the system; a BOS; trimmed messages; Qwen3's thoughts
//   llama3    the dates that Llama 3.1 and later tell the system
//   llama2    nothing
//   mistral   the spaces around [INST] and [/INST], before and behind an answer; where the text of
//             the system is; trimmed answers
//   zephyr    whether a line feed is behind EOS
//
// The rendering is that of the template, with these exceptions:
//   Only messages of the roles system, user and assistant with a text, no tools, no documents.
//   Llama 3's date of today is the one that its template has for programs without a clock, so that
//   a conversation is the same text every day.
//   Mistral 7B v0.3 and Nemo leave out the text of the system when an answer is the last message.
//   Here it is in the last question then, as it was in the prompt.
//
// Templates are those that were published with the models up to 2025.
#pragma once

#include <filesystem>
#include <string>

#include "absl/status/statusor.h"
#include "common/chat/chat_format.h"

namespace nsa {

struct ChatTemplate {
  std::string text;  // in Jinja; empty: the folder has none
  ChatEnds ends;     // the tokenizer's
};

// The template of a folder with the files of a tokenizer: chat_template.jinja, or chat_template of
// tokenizer_config.json, of several the one named "default"; and bos_token and eos_token of
// tokenizer_config.json. A folder without these files has none.
//
// InvalidArgument, naming the file, for one of more than kLargestChatFile bytes, and one that is
// not as Hugging Face writes it; the errors of OpenJobFile() for one that may not be read.
absl::StatusOr<ChatTemplate> ReadChatTemplate(const std::filesystem::path& folder);

inline constexpr int64_t kLargestChatFile = 4 << 20;

// The format that a template stands for; that of no template is chatml. InvalidArgument for a
// template of no known family or with a part that the family does not have; it says which.
absl::StatusOr<ChatFormat> FormatOfTemplate(const ChatTemplate& chat);

// Both: the format of the model whose tokenizer is in the folder. Errors name the folder.
absl::StatusOr<ChatFormat> ReadChatFormat(const std::filesystem::path& folder);

}  // namespace nsa
