// Generates text with a model: nsa-worker sample CHECKPOINT --prompt "…" --bytes 200, and while a
// job trains (job_samples.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/train/score/draw.h"
#include "worker/train/score/text_model.h"

namespace nsa::train {

class TrainedModel;

struct SampleOptions {
  std::string prompt;
  // The text ends after so many bytes (or the first token beyond them) or tokens, whichever comes
  // first. Without either: 200 bytes.
  std::optional<int64_t> bytes;
  std::optional<int64_t> tokens;
  // It also ends behind the first of these (AnswerEnds()), which is part of it unless it is the
  // separator, which has no bytes.
  std::vector<std::string> ends;
  DrawOptions draw;
  int64_t seed = 1;
  // Tokens that the model sees at most; 0: those of the sequences that it was trained on.
  int32_t context = 0;
};

// Takes each token's bytes as soon as the token is drawn. An error ends the text.
using OnBytes = std::function<absl::Status(std::string_view bytes)>;

// Returns a continuation of the prompt, without the prompt. The text is the separator, the prompt
// and what was generated so far. The model sees all of it as long as it fits the context, the last
// context tokens of a longer prompt, and at least the last half of a context afterwards: when the
// context is full it is begun again with its second half. It never has a separator. The same
// options give the same text of the same parameters. It makes a decoder of its own, whose memory it
// frees. InvalidArgument for options out of range; the errors of the tokenizer, of the decoder and
// of `on_bytes`, which may be empty.
absl::StatusOr<std::string> Sample(const TextModel& model, const SampleOptions& options,
                                   const OnBytes& on_bytes = {});
absl::StatusOr<std::string> Sample(const TrainedModel& trained, const SampleOptions& options,
                                   const OnBytes& on_bytes = {});

// Returns the bytes as valid UTF-8 for a terminal. A carriage return ends a line, also together
// with a newline. Invalid bytes, and control characters other than newline and tab, are replaced by
// U+FFFD.
std::string PrintableUtf8(std::string_view bytes);

// The same for bytes that come in pieces, between which a character may be cut. The results, one
// after the other, are PrintableUtf8() of all bytes, or ValidUtf8() (utf8.h) where they do not go
// to a terminal.
class PrintableStream {
 public:
  explicit PrintableStream(bool terminal) : terminal_(terminal) {}

  // Returns what can be shown now. An incomplete character or end of line waits for the next piece.
  std::string Add(std::string_view bytes);
  // Returns the rest.
  std::string Finish();

 private:
  std::string Shown(std::string_view bytes) const;

  const bool terminal_;
  std::string waiting_;
};

}  // namespace nsa::train
