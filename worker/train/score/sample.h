// Text from a trained model: nsa-worker --sample CHECKPOINT --prompt "…" --bytes 200.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/exec.h"
#include "worker/train/score/trained_model.h"

namespace nsa {

struct SampleOptions {
  std::string prompt;
  int64_t bytes = 200;       // at least that many bytes are generated
  double temperature = 0.8;  // 0 takes the likeliest token each time
  int64_t seed = 1;
};

// The prompt's continuation, without the prompt. The model sees the separator, the prompt and what
// it has written, of which the last S tokens; it never writes a separator. The same options give
// the same text.
absl::StatusOr<std::string> Sample(const Exec& exec, const TrainedModel& trained,
                                   const SampleOptions& options);

// The token drawn from `logits` at `temperature`, given a uniform number in [0, 1); never
// `excluded`.
int32_t DrawToken(std::span<const float> logits, double temperature, double uniform,
                  int32_t excluded);

// Bytes as valid UTF-8 for a terminal: what is not UTF-8, and control characters other than newline
// and tab, become U+FFFD.
std::string PrintableUtf8(std::string_view bytes);

}  // namespace nsa
