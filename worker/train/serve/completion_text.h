// The text of one choice as it grows, token by token: what of it may be sent already.
//
// A character is held back until its last byte is there, and a text that could be the beginning of
// a stop string until it cannot. So the pieces, one after the other, are the same text however they
// are taken.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nsa::train::serve {

struct AnswerToken {
  std::string bytes;             // what it stands for; empty for the separator
  std::string name;              // as logprobs show it
  std::optional<float> logprob;  // nothing for the first token of a prompt
  // The most probable tokens in its place, the first of them first, and then this one unless it is
  // among them: names and logprobs. Empty unless wanted.
  std::vector<std::pair<std::string, float>> top = {};
};

// A token in the text.
struct PlacedToken {
  AnswerToken token;
  int64_t offset = 0;  // characters of prompt and completion before it
};

// A part of a choice.
struct AnswerPiece {
  int32_t choice = 0;
  std::string text;                 // valid UTF-8
  std::vector<PlacedToken> tokens;  // those that begin in this text; empty unless wanted
  std::string finish_reason;        // "stop" or "length" in the last part, otherwise empty

  bool empty() const { return text.empty() && tokens.empty() && finish_reason.empty(); }
};

class CompletionText {
 public:
  // The completion ends before the first of `stops`. `offset`: the characters of a prompt that is
  // not part of the text. `tokens`: the pieces have them.
  CompletionText(int32_t choice, std::vector<std::string> stops, int64_t offset, bool tokens)
      : choice_(choice), stops_(std::move(stops)), tokens_wanted_(tokens), characters_(offset) {}

  // A token of the prompt, to be echoed. Before all of the completion.
  void AddPrompt(AnswerToken token);
  // A token of the completion. Nothing once stopped() is true.
  void Add(AnswerToken token);
  // The completion ends here, as before a stop string.
  void Stop();

  bool stopped() const { return stopped_; }

  // What may be sent now and was not taken yet; possibly nothing.
  AnswerPiece Take();
  // The rest, with the reason why it ends.
  AnswerPiece Finish();

 private:
  struct Waiting {
    PlacedToken placed;
    int64_t begin = 0;  // bytes of the text before it
  };

  void Append(AnswerToken token);
  void Settle(size_t bytes);
  void LookForStop();
  size_t Sendable() const;
  AnswerPiece Cut(size_t bytes, bool all_tokens);

  const int32_t choice_;
  const std::vector<std::string> stops_;
  const bool tokens_wanted_;

  std::string partial_;     // bytes of a character that is not complete
  std::string held_;        // text that was not taken
  size_t prompt_ = 0;       // bytes of held_ that are the prompt's
  int64_t taken_ = 0;       // bytes of text before held_
  int64_t characters_ = 0;  // of prompt and completion, up to the end of held_
  bool stopped_ = false;
  std::deque<Waiting> waiting_;  // tokens that were not taken
};

}  // namespace nsa::train::serve
