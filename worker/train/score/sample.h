// Generates text with a trained model: nsa-worker --sample CHECKPOINT --prompt "…" --bytes 200.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/exec.h"
#include "worker/train/score/trained_model.h"

namespace nsa::train {

struct SampleOptions {
  std::string prompt;
  int64_t bytes = 200;       // generate at least this number of bytes
  double temperature = 0.8;  // 0: always the most probable token
  int64_t seed = 1;
};

// Returns a continuation of the prompt, without the prompt. The model sees the last S tokens of the
// separator, the prompt and the text generated so far. It never generates a separator. The same
// options give the same text. `on_bytes`, if set, is called with each token's bytes as soon as the
// token is drawn.
absl::StatusOr<std::string> Sample(const Exec& exec, const TrainedModel& trained,
                                   const SampleOptions& options,
                                   const std::function<void(std::string_view)>& on_bytes = {});

// Draws a token from the distribution that `logits` give at `temperature`; `uniform` is a random
// number in [0, 1). Never returns `excluded`.
int32_t DrawToken(std::span<const float> logits, double temperature, double uniform,
                  int32_t excluded);

// Returns the bytes as valid UTF-8 for a terminal. Invalid bytes, and control characters other than
// newline and tab, are replaced by U+FFFD.
std::string PrintableUtf8(std::string_view bytes);

// The same for bytes that come in pieces, between which a character may be cut. The results, one
// after the other, are PrintableUtf8() of all bytes.
class PrintableStream {
 public:
  // Returns what can be shown now. An incomplete character waits for the next piece.
  std::string Add(std::string_view bytes);
  // Returns the rest.
  std::string Finish();

 private:
  std::string waiting_;
};

}  // namespace nsa::train
