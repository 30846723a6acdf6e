// Turns text into tokens and back.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/data/read/byte_stream.h"
#include "worker/train/data/tokens/token.h"

namespace nsa::train {

// Immutable; threads may share one.
class TextTokenizer {
 public:
  virtual ~TextTokenizer() = default;

  virtual int32_t vocab() const = 0;

  // The token that begins a document.
  virtual int32_t separator() const = 0;

  // Appends the tokens of `text`, which may be a whole file. `progress` may be null. Otherwise
  // Encode() adds the bytes of text that it has encoded to `bytes`, and returns Cancelled once
  // `cancelled` is set.
  virtual absl::Status Encode(std::string_view text, std::vector<Token>* tokens,
                              ReadProgress* progress = nullptr) const = 0;

  // The bytes of a token; empty for the separator. `token` is in [0, vocab()).
  virtual std::string Decode(int32_t token) const = 0;
};

// The Cancelled error of Encode().
absl::Status EncodingCancelled();

// UTF-8 bytes; vocabulary 256, byte 0 begins a document.
std::unique_ptr<TextTokenizer> ByteTokenizer();

// The tokenizer that a job asks for: bytes, or GPT-2 BPE from data.tokenizer_path (see gpt2_bpe.h).
absl::StatusOr<std::unique_ptr<TextTokenizer>> MakeTokenizer(const v1::DataSpec& data);

}  // namespace nsa::train
