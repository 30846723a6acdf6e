// The model one token after another. The keys and values of earlier tokens are kept
// (layer_cache.h), so a token costs one row of each matrix product and the keys that it attends to,
// whatever the length of the text, instead of a forward pass over all of it:
//
//   NSA_ASSIGN_OR_RETURN(auto decoder, Decoder::Create(exec, spec, &parameters, {.context = 99}));
//   NSA_ASSIGN_OR_RETURN(logits, decoder->Prefill(prompt));
//   while (…) NSA_ASSIGN_OR_RETURN(logits, decoder->Step(Draw(logits)));
//
// A decoder has one or more slots, each with a sequence of its own, its caches and its place in
// it. Calls without a slot are of slot 0. One step takes a token for each of several slots.
//
// The logits are those of Model for the same tokens, up to rounding: a product of one row adds in
// another order than one of many. However the tokens are divided into calls, the same keys are
// read. A slot's logits have the same bits whatever is in the other slots and in the same step, and
// whatever was in the slot before its Reset(). They also have the same bits when a text is read in
// several calls of a multiple of kMostRows tokens instead of one, or when Step() reads a token
// instead of Prefill().
//
// One thread at a time. Fp32 on the CPU (cpu_decoder.h), bf16 on a GPU (gpu_decoder.h).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/nsa/branch.h"
#include "kernels/exec.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {

struct DecoderOptions {
  // Most tokens of a sequence, 1 to 1,048,576. It may be more than the model was trained on.
  int32_t context = 0;

  // Sequences that are held at the same time, 1 to Decoder::kMostSlots.
  int32_t slots = 1;

  // The token that begins a document, in a model with a document mask: from it on, no earlier token
  // is attended to. Nothing without a mask.
  std::optional<int32_t> separator = {};
};

// The next token of the sequence in a slot.
struct SlotToken {
  int32_t slot = 0;
  int32_t token = 0;
};

class Decoder {
 public:
  static constexpr int32_t kMostSlots = 64;

  // A decoder on the device of `exec`, whose streams and library it uses and which outlive it. It
  // uses no Exec::workspace. `parameters`, in the memory of that device, has the layout of `spec`
  // and outlives the decoder too. InvalidArgument when the number of slots is out of range, or the
  // shape outside the limits of common/nsa/nsa_shape.h.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(const Exec& exec, const v1::JobSpec& spec,
                                                         const Arena* parameters,
                                                         const DecoderOptions& options);
  virtual ~Decoder() = default;

  // bytes() of a new decoder on the device of `backend`. Allocates nothing. The errors of Create()
  // for these options.
  static absl::StatusOr<int64_t> BytesFor(const v1::JobSpec& spec, Backend backend,
                                          const DecoderOptions& options);

  // In all of these, `slot` is below slots().
  //
  // Appends tokens, at least one, to the sequence and returns the logits [V] of the token after
  // them, in host memory, which stay until the next call. InvalidArgument when there are no tokens
  // or one is outside the vocabulary, OutOfRange when they exceed the context; the sequence is then
  // unchanged. After any other error, of the device, the slot must be reset.
  virtual absl::StatusOr<std::span<const float>> Prefill(int32_t slot,
                                                         std::span<const int32_t> tokens) = 0;
  absl::StatusOr<std::span<const float>> Prefill(std::span<const int32_t> tokens) {
    return Prefill(0, tokens);
  }

  // Most tokens that PrefillEach() takes.
  static constexpr int64_t kMostRows = 64;

  // As Prefill() for at most kMostRows tokens, and returns the logits [tokens, V] after each of
  // them. The first call takes memory for kMostRows · V floats, which bytes() then counts.
  // InvalidArgument when there are more tokens.
  virtual absl::StatusOr<std::span<const float>> PrefillEach(int32_t slot,
                                                             std::span<const int32_t> tokens) = 0;
  absl::StatusOr<std::span<const float>> PrefillEach(std::span<const int32_t> tokens) {
    return PrefillEach(0, tokens);
  }

  // Appends one token to each of several sequences and returns the logits [tokens, V] after them,
  // which stay until the next call. The errors of Prefill(), and InvalidArgument for a slot that
  // does not exist or appears twice; then no sequence has changed. After an error of the device
  // all slots of the step must be reset. The CPU computes one slot after another.
  virtual absl::StatusOr<std::span<const float>> Step(std::span<const SlotToken> tokens);
  absl::StatusOr<std::span<const float>> Step(int32_t token) { return Prefill(0, {&token, 1}); }

  // Forgets the sequence and its counters, and keeps the memory.
  virtual void Reset(int32_t slot) = 0;
  void Reset() { Reset(0); }

  virtual int32_t vocab() const = 0;  // V
  virtual int32_t context() const = 0;
  virtual int32_t slots() const = 0;
  // Tokens of the sequence so far.
  virtual int32_t tokens(int32_t slot) const = 0;
  int32_t tokens() const { return tokens(0); }

  // Keys that the attention of layer `layer` has read for all tokens of the sequence, by branch. A
  // key counts once for all heads of a group. nsa::KeysRead() is the expected number. The errors
  // are those of a device that the numbers are fetched from.
  virtual absl::StatusOr<std::array<int64_t, kBranches>> keys_read(int32_t slot,
                                                                   int32_t layer) const = 0;
  absl::StatusOr<std::array<int64_t, kBranches>> keys_read(int32_t layer) const {
    return keys_read(0, layer);
  }

  // Memory besides the parameters, but for the logits of the last step.
  virtual int64_t bytes() const = 0;

 protected:
  Decoder() = default;
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

 private:
  std::vector<float> stepped_;  // the logits of a step
};

}  // namespace nsa::train
