// Turns text into tokens and back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/data/read/byte_stream.h"
#include "worker/train/data/tokens/token.h"

namespace nsa::train {

// Where a text stands in a document. Some tokenizers put a space in front of it accordingly.
enum class TextPlace {
  kFirst,   // it begins the document
  kBehind,  // it follows a token that is no text
  kWithin,  // it follows other text, which was encoded without it
};

// Immutable; threads may share one.
class TextTokenizer {
 public:
  // What encodes one text from its beginning to its end. Of one thread.
  class Encoding {
   public:
    virtual ~Encoding() = default;
    // Whether all of the text is encoded.
    virtual bool done() const = 0;
    // Appends the tokens of the next `bytes` of the text, or of some more; the errors of Encode().
    virtual absl::Status Next(size_t bytes, std::vector<Token>* tokens, ReadProgress* progress) = 0;
  };

  virtual ~TextTokenizer() = default;

  virtual int32_t vocab() const = 0;

  // The token that begins a document.
  virtual int32_t separator() const = 0;

  // Appends the tokens of `text`, which may be a whole file. `progress` may be null. Otherwise
  // Encode() adds the bytes of text that it has encoded to `bytes`, and returns Cancelled once
  // `cancelled` is set. InvalidArgument for a text that the tokenizer's pattern cannot split
  // or its normalizer cannot normalize.
  absl::Status Encode(std::string_view text, std::vector<Token>* tokens,
                      ReadProgress* progress = nullptr, TextPlace place = TextPlace::kFirst) const;

  // The same, but hands the tokens on in parts, each of about a megabyte of text, so that those of
  // a long text are never held at once. Ends with the first error of `append`.
  using Append = std::function<absl::Status(std::span<const Token>)>;
  absl::Status EncodeInParts(std::string_view text, const Append& append, ReadProgress* progress,
                             TextPlace place = TextPlace::kFirst) const;

  // The bytes of a token; empty for the separator. `token` is in [0, vocab()). The texts of tokens
  // one after another are the text that was encoded, but for a space that a tokenizer puts in front
  // of it. A character may have several tokens (score/utf8.h divides bytes into characters).
  virtual std::string Decode(int32_t token) const = 0;

  // The added token with this spelling, special ones included; nothing if there is none.
  virtual std::optional<int32_t> TokenSpelled(std::string_view spelling) const = 0;

 private:
  // Begins with a text, which, like the tokenizer, must outlive the Encoding.
  virtual std::unique_ptr<Encoding> Begin(std::string_view text, TextPlace place) const = 0;
};

// Whether these tokens, which a text of `bytes` has become, begin with a space that it has not.
bool AddsSpace(const TextTokenizer& tokenizer, std::span<const Token> tokens, size_t bytes);

// The Cancelled error of Encode().
absl::Status EncodingCancelled();

// UTF-8 bytes; vocabulary 256, byte 0 begins a document.
std::unique_ptr<TextTokenizer> ByteTokenizer();

// The tokenizer that a job asks for: bytes, or BPE from data.tokenizer_path (see bpe.h).
// FailedPrecondition if that is not set.
absl::StatusOr<std::unique_ptr<TextTokenizer>> MakeTokenizer(const v1::DataSpec& data);

}  // namespace nsa::train
