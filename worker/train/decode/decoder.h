// The model one token after another. The keys and values of earlier tokens are kept
// (layer_cache.h), so a token costs one row of each matrix product and the keys that it attends to,
// whatever the length of the text, instead of a forward pass over all of it:
//
//   NSA_ASSIGN_OR_RETURN(auto decoder, Decoder::Create(exec, spec, &parameters, {.context = 99}));
//   NSA_ASSIGN_OR_RETURN(logits, decoder->Prefill(prompt));
//   while (…) NSA_ASSIGN_OR_RETURN(logits, decoder->Step(Draw(logits)));
//
// The logits are those of Model for the same tokens, up to rounding: a product of one row adds in
// another order than one of many. However the tokens are divided into calls, the same keys are
// read.
//
// A decoder holds one sequence. One thread at a time. Fp32 on the CPU (cpu_decoder.h), bf16 on a
// GPU (gpu_decoder.h).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "common/nsa/branch.h"
#include "kernels/exec.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {

struct DecoderOptions {
  // Most tokens of the sequence, 1 to 1,048,576. It may be more than the model was trained on.
  int32_t context = 0;

  // The token that begins a document, in a model with a document mask: from it on, no earlier token
  // is attended to. Nothing without a mask.
  std::optional<int32_t> separator = {};
};

class Decoder {
 public:
  // A decoder on the device of `exec`, whose streams and library it uses and which outlive it. It
  // uses no Exec::workspace. `parameters`, in the memory of that device, has the layout of `spec`
  // and outlives the decoder too. InvalidArgument when the shape is outside the limits of
  // common/nsa/nsa_shape.h.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(const Exec& exec, const v1::JobSpec& spec,
                                                         const Arena* parameters,
                                                         const DecoderOptions& options);
  virtual ~Decoder() = default;

  // Appends tokens, at least one, to the sequence and returns the logits [V] of the token after
  // them, in host memory, which stay until the next call. InvalidArgument when there are no tokens
  // or one is outside the vocabulary, OutOfRange when they exceed the context; the sequence is then
  // unchanged.
  virtual absl::StatusOr<std::span<const float>> Prefill(std::span<const int32_t> tokens) = 0;
  absl::StatusOr<std::span<const float>> Step(int32_t token) { return Prefill({&token, 1}); }

  // Most tokens that PrefillEach() takes.
  static constexpr int64_t kMostRows = 64;

  // As Prefill() for at most kMostRows tokens, and returns the logits [tokens, V] after each of
  // them. The first call takes memory for kMostRows · V floats, which bytes() then counts.
  // InvalidArgument when there are more tokens.
  virtual absl::StatusOr<std::span<const float>> PrefillEach(std::span<const int32_t> tokens) = 0;

  // Forgets the sequence and its counters, and keeps the memory.
  virtual void Reset() = 0;

  virtual int32_t context() const = 0;
  // Tokens of the sequence so far.
  virtual int32_t tokens() const = 0;

  // Keys that the attention of layer `layer` has read for all tokens of the sequence, by branch. A
  // key counts once for all heads of a group. nsa::KeysRead() is the expected number. The errors
  // are those of a device that the numbers are fetched from.
  virtual absl::StatusOr<std::array<int64_t, kBranches>> keys_read(int32_t layer) const = 0;

  // Memory besides the parameters.
  virtual int64_t bytes() const = 0;

 protected:
  Decoder() = default;
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
};

}  // namespace nsa::train
