// The model one token after another. The keys and values of earlier tokens are kept
// (layer_cache.h), so a token costs one row of each matrix product and the keys that it attends to,
// whatever the length of the text, instead of a forward pass over all of it:
//
//   NSA_ASSIGN_OR_RETURN(auto decoder, Decoder::Create(spec, &parameters, {.context = 2048}));
//   NSA_ASSIGN_OR_RETURN(logits, decoder->Prefill(exec, prompt));
//   while (…) NSA_ASSIGN_OR_RETURN(logits, decoder->Step(exec, Draw(logits)));
//
// The logits are those of Model for the same tokens, up to rounding: a product of one row adds in
// another order than one of many. However the tokens are divided into calls, the same keys are
// read.
//
// A decoder holds one sequence. CPU only, fp32. One thread at a time.
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
  // `parameters`, in host memory, has the layout of `spec` and outlives the decoder.
  // InvalidArgument when the shape is outside the limits of common/nsa/nsa_shape.h.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(const v1::JobSpec& spec,
                                                         const Arena* parameters,
                                                         const DecoderOptions& options);
  ~Decoder();

  // Bytes of memory of a decoder with this context, besides the parameters. Allocates nothing.
  // InvalidArgument as Create().
  static absl::StatusOr<int64_t> BytesFor(const v1::JobSpec& spec, int32_t context);

  // Appends tokens, at least one, to the sequence and returns the logits [V] of the token after
  // them, which stay until the next call. InvalidArgument when there are no tokens or one is
  // outside the vocabulary, OutOfRange when they exceed the context; the sequence is then
  // unchanged.
  absl::StatusOr<std::span<const float>> Prefill(const Exec& exec, std::span<const int32_t> tokens);
  absl::StatusOr<std::span<const float>> Step(const Exec& exec, int32_t token);

  // Most tokens that PrefillEach() takes.
  static constexpr int64_t kMostRows = 64;

  // As Prefill() for at most kMostRows tokens, and returns the logits [tokens, V] after each of
  // them. The first call takes memory for kMostRows · V floats, which bytes() then counts.
  // InvalidArgument when there are more tokens.
  absl::StatusOr<std::span<const float>> PrefillEach(const Exec& exec,
                                                     std::span<const int32_t> tokens);

  // Forgets the sequence and its counters, and keeps the memory.
  void Reset();

  int32_t context() const;
  // Tokens of the sequence so far.
  int32_t tokens() const;

  // Keys that the attention of layer `layer` has read for all tokens of the sequence, by branch. A
  // key counts once for all heads of a group. nsa::KeysRead() is the expected number.
  const std::array<int64_t, kBranches>& keys_read(int32_t layer) const;

  // BytesFor() the context, and what PrefillEach() has taken.
  int64_t bytes() const;

 private:
  class Impl;
  explicit Decoder(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nsa::train
