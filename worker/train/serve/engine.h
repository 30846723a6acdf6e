// Completes texts with a trained model, those of several requests together.
//
// choice.h says what a text is. A chat is the conversation in the format of the model's tokenizer,
// with the tokens that it has in training (data.loss_on: assistant), and then the answer.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/chat/chat_format.h"
#include "worker/train/decode/decoder.h"
#include "worker/train/score/trained_model.h"
#include "worker/train/serve/batch.h"
#include "worker/train/serve/request.h"
#include "worker/train/serve/task.h"

namespace nsa::train::serve {

struct EngineOptions {
  // Tokens that the model sees at most, the separator included; 0: those of the sequences that it
  // was trained on.
  int32_t context = 0;
  // Choices that are written at the same time; 0: as many as half of the free memory has caches
  // for, at least one and at most kUsualSlots.
  int32_t slots = 0;
};

// The slots whose memory is at most `bytes`, if the first takes `first` and each further one
// `further`: at least one, and at most kUsualSlots.
int32_t SlotsThatFit(int64_t bytes, int64_t first, int64_t further);

// ResourceExhausted for caches that take more than the free memory of a machine; 0: not known. The
// CPU's allocation would end the program.
absl::Status CheckCaches(int64_t bytes, int64_t free, int32_t slots, int32_t context);

class Engine {
 public:
  // `trained` outlives the engine. Takes the memory of the caches. InvalidArgument when the context
  // or the slots are out of range, ResourceExhausted when there is too little free memory.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const TrainedModel* trained,
                                                        const EngineOptions& options);

  int32_t context() const { return decoder_->context(); }
  int32_t slots() const { return decoder_->slots(); }
  // Memory besides the parameters: the caches and, once a prompt was scored, logits.
  int64_t bytes() const { return decoder_->bytes(); }

  // Thread-safe. InvalidArgument for a token outside the vocabulary, a request of too many tokens
  // and messages that RenderPrompt() refuses, OutOfRange for a prompt that is longer than the
  // context, an error with the HTTP status 400 for a chat if the model's chat template is not
  // known.
  absl::StatusOr<Task> Prepare(CompletionRequest request) const;

  // What computes the answers. One thread at a time.
  Batch* batch() { return &batch_; }

 private:
  Engine(const TrainedModel* trained, std::unique_ptr<Decoder> decoder);

  absl::Status AddChat(Task* task) const;
  absl::Status AddPrompt(std::vector<int32_t> tokens, Task* task) const;

  const TrainedModel& trained_;
  const std::unique_ptr<Decoder> decoder_;
  const absl::StatusOr<ChatFormat> format_;
  Batch batch_;
};

}  // namespace nsa::train::serve
