// Text from a trained model: nsa-worker --sample CHECKPOINT --prompt "…" --bytes 200.
#pragma once

#include <cstdint>
#include <functional>
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
// the same text. `on_bytes`, where there is one, gets each token's bytes as soon as they are drawn.
absl::StatusOr<std::string> Sample(const Exec& exec, const TrainedModel& trained,
                                   const SampleOptions& options,
                                   const std::function<void(std::string_view)>& on_bytes = {});

// The token drawn from `logits` at `temperature`, given a uniform number in [0, 1); never
// `excluded`.
int32_t DrawToken(std::span<const float> logits, double temperature, double uniform,
                  int32_t excluded);

// Bytes as valid UTF-8 for a terminal: what is not UTF-8, and control characters other than newline
// and tab, become U+FFFD.
std::string PrintableUtf8(std::string_view bytes);

// The same for bytes that come in pieces, which may cut a character: what it gives, one after the
// other, is PrintableUtf8() of the whole.
class PrintableStream {
 public:
  // What can be shown so far; the beginning of a character waits for its end.
  std::string Add(std::string_view bytes);
  // What still waited.
  std::string Finish();

 private:
  std::string waiting_;
};

}  // namespace nsa
