// Completes texts with a trained model, one request at a time.
//
// A text is the separator and the prompt, unless the prompt begins with the separator itself, and
// then what was generated; the rules are those of Sample() (score/sample.h): the separator is never
// generated, and when the context is full it is begun again with its second half. At temperature 0,
// and for the first choice also with the same seed, the text is that of Sample().
//
// A chat is the conversation in the format of the model's tokenizer, with the tokens that it has in
// training (data.loss_on: assistant), and then the answer. The answer ends where one of the
// format's stops is generated, the separator too if it is one, or when the context is full.
//
// A prompt that is echoed with logprobs is read through the decoder's caches too, so its tokens are
// scored as ScoreTokens() scores them, up to rounding.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/chat/chat_format.h"
#include "worker/train/decode/decoder.h"
#include "worker/train/score/trained_model.h"
#include "worker/train/serve/answer.h"
#include "worker/train/serve/completion_text.h"
#include "worker/train/serve/request.h"

namespace nsa::train::serve {

// A request whose prompts are tokens that fit the model.
struct Task {
  CompletionRequest request;
  // As they were sent: with the separator only where the client wrote it, or in front of a chat.
  std::vector<std::vector<int32_t>> prompts;
  std::vector<int64_t> most;  // tokens to generate after each prompt
  // Of a chat.
  std::vector<int32_t> stop_tokens = {};  // end the answer and are not part of it
  std::string lead = {};  // what an answer begins with by its format; not part of it
};

class Engine {
 public:
  // `trained` outlives the engine. `context`: tokens that the model sees at most, the separator
  // included; 0: those of the sequences that it was trained on. Takes the memory of the caches.
  // InvalidArgument when the context is out of range.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const TrainedModel* trained,
                                                        int32_t context);

  int32_t context() const { return decoder_->context(); }
  // Memory besides the parameters: the caches and, once a prompt was scored, logits.
  int64_t bytes() const { return decoder_->bytes(); }

  // Thread-safe. InvalidArgument for a token outside the vocabulary, a request of too many tokens
  // and messages that RenderPrompt() refuses, OutOfRange for a prompt that is longer than the
  // context, an error with the HTTP status 400 for a chat if the model's chat template is not
  // known.
  absl::StatusOr<Task> Prepare(CompletionRequest request) const;

  struct Client {
    // Asked between two steps of computing; once it is false, Complete() ends with Cancelled.
    std::function<bool()> wanted;
    // Takes the next part of the answer; may wait.
    std::function<void(AnswerPiece)> take;
  };

  // Writes the choices one after the other. Each ends with a piece that has a finish_reason. One
  // thread at a time.
  absl::StatusOr<Usage> Complete(const Task& task, const Client& client);

 private:
  struct Choice;

  Engine(const TrainedModel* trained, std::unique_ptr<Decoder> decoder);

  absl::Status AddChat(Task* task) const;
  absl::Status AddPrompt(std::vector<int32_t> tokens, Task* task) const;
  absl::Status Write(const Client& client, Choice* choice);
  absl::StatusOr<std::span<const float>> ReadPrompt(const Client& client, Choice* choice);
  absl::StatusOr<std::span<const float>> ScorePrompt(const Client& client, Choice* choice);
  absl::StatusOr<std::span<const float>> Read(const Client& client,
                                              std::span<const int32_t> tokens);
  absl::StatusOr<std::span<const float>> ReadNext(const Client& client, const Choice& choice);

  AnswerToken Named(int32_t token) const;
  AnswerToken Scored(int32_t token, std::span<const float> logits, int32_t top) const;

  const TrainedModel& trained_;
  const std::unique_ptr<Decoder> decoder_;
  const absl::StatusOr<ChatFormat> format_;
};

}  // namespace nsa::train::serve
