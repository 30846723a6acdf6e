// One choice of an answer while it is written: which tokens the model reads for it, and what
// becomes of the logits.
//
// A text is the separator and the prompt, unless the prompt begins with the separator itself, and
// then what was generated; the rules are those of Sample() (score/sample.h): the separator is never
// generated, and when the context is full it is begun again with its second half. At temperature 0,
// and for the first choice also with the same seed, the text is that of Sample(), which of a model
// of conversations may end with an answer.
//
// The answer of a chat ends where one of the format's stops is generated, the separator too if it
// is one, or when the context is full.
//
// A prompt that is echoed with logprobs is read through the decoder's caches too, so its tokens are
// scored as ScoreTokens() scores them, up to rounding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "worker/train/data/random.h"
#include "worker/train/data/tokenize/tokenizer.h"
#include "worker/train/serve/completion_text.h"
#include "worker/train/serve/task.h"

namespace nsa::train::serve {

class Choice {
 public:
  // Choice number `index` of the task, with the seed of the whole answer. All are borrowed.
  Choice(const TextTokenizer* tokenizer, const Task* task, size_t index, uint64_t seed);

  // Whether the text is complete; then nothing is to be read.
  bool finished() const;
  // The tokens that the model has to read next, at least one.
  std::span<const int32_t> unread() const { return std::span(text_).subspan(read_); }
  // Whether the logits after each of these tokens are wanted, not only after the last.
  bool scores() const { return scored_ && generated_ == 0 && read_ < text_.size(); }

  // The model has read the first `rows` of unread(); `logits` are those after each of them if
  // scores(), [rows, V], otherwise those after the last, [V]. After the last token of unread() the
  // next one is drawn, unless the text is complete.
  void Read(size_t rows, std::span<const float> logits);

  // The context is full: the last `tokens` of the text are to be read anew, from position 0.
  void BeginAgain(size_t tokens) { read_ = text_.size() - tokens; }

  // What may be sent now; possibly nothing. Once finished(): the rest, with the reason.
  AnswerPiece Take() { return out_.Take(); }
  AnswerPiece Finish() { return out_.Finish(); }

  int64_t generated() const { return generated_; }  // tokens, a stop token included

 private:
  void Score(size_t rows, std::span<const float> logits);
  void Draw(std::span<const float> logits);
  AnswerToken Named(int32_t token) const;
  AnswerToken Scored(int32_t token, std::span<const float> logits) const;

  const TextTokenizer& tokenizer_;
  const Task& task_;
  const std::vector<int32_t>& prompt_;
  const int64_t most_;         // tokens to generate
  const size_t added_;         // 1: the separator was put in front of the prompt
  const bool scored_;          // the prompt is
  std::vector<int32_t> text_;  // what the model reads
  size_t read_ = 0;            // tokens of it that were read
  CompletionText out_;
  KeyedRandom random_;
  int64_t generated_ = 0;
};

}  // namespace nsa::train::serve
