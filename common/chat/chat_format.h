// What stands around the messages of a conversation in the text that a chat model reads.
//
// A format is data: the texts before and behind a message of each role. render.h puts them
// together; chat_template.h finds the format that the chat_template of a published model stands
// for. Formats by name:
//
//   name      a question and its answer                                        of
//   chatml    <|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n   Qwen, SmolLM
//   llama3    BOS <|start_header_id|>user<|end_header_id|>\n\nQ<|eot_id|>…A<|eot_id|> Llama 3
//   llama2    BOS [INST] Q [/INST] A EOS                                       Llama 2 chat
//   mistral   BOS [INST] Q [/INST] A EOS, the BOS once                         Mistral 7B Instruct
//   zephyr    <|user|>\nQ EOS \n<|assistant|>\nA EOS \n                        Zephyr, TinyLlama
//
// The first two serve a new model best: their markers are never parts of words. `chatml` is the
// default of a model without a template.
//
// Threads: plain values.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace nsa {

// A piece of a rendered conversation. Neither `control` nor `answer` pieces are ever empty.
struct ChatPiece {
  std::string text;
  // A marker of the format, such as <|im_end|>. It is the token that the vocabulary has for it; a
  // vocabulary without one reads it as text, together with the text around it. Only markers may
  // become special tokens: their spelling within a message stays text.
  bool control = false;
  // What the assistant says, with the marker that ends it: the loss of training counts here, and
  // the model writes it when it answers. An encoder begins a new text where it changes.
  bool answer = false;

  bool operator==(const ChatPiece&) const = default;
};

// A message's surroundings.
struct ChatTurn {
  std::vector<ChatPiece> before;
  std::vector<ChatPiece> behind;
  bool trim = false;  // white space at both ends of the message is left out
};

// Where the text of the system is.
enum class SystemPlace {
  kTurn,       // before the first message, in a turn of its own
  kFirstUser,  // within the turn of the first question, before it
  kLastUser,   // within that of the last question
  kNone,       // nowhere: a conversation with one is refused
};

// What becomes of the thoughts of an answer, "<think>…</think>" before what it says. (Qwen3)
enum class Thoughts {
  kText,    // nothing: they are text like any other
  kLast,    // the answers to the last question have them, empty if need be; no other has any
  kOpened,  // the same, and <think> is part of the prompt
};

struct ChatFormat {
  std::string name;              // one of kChatFormatNames
  std::vector<ChatPiece> begin;  // of the conversation
  ChatTurn system, user, assistant;
  SystemPlace system_place = SystemPlace::kTurn;
  std::optional<std::string> default_system;  // of a conversation without a text of the system
  bool alternates = false;  // questions and answers take turns, and a question is first
  Thoughts thoughts = Thoughts::kText;
  // What ends generation: first the marker that ends an answer, then others that a model may
  // write. One that the vocabulary has is a token; others are looked for in the text.
  std::vector<std::string> stops;
};

inline constexpr std::string_view kChatFormatNames[] = {"chatml", "llama3", "llama2", "mistral",
                                                        "zephyr"};

// "chatml, llama3, …".
std::string ChatFormatWords();

// The tokens of a tokenizer that begin and end a text; empty: those that the format's models have.
struct ChatEnds {
  std::string bos;
  std::string eos;
};

// A format by its name, without a default text of the system. InvalidArgument for another name.
absl::StatusOr<ChatFormat> NamedChatFormat(std::string_view name, const ChatEnds& ends = {});

}  // namespace nsa
