// How probable a trained model finds a text: nsa-worker --score CHECKPOINT TEXT -o scores.jsonl.
//
// The text is tokenised, the document separator is put in front, and windows of S tokens (S =
// train.seq_len) are laid over it, each S/2 further on than the one before. A token is scored in
// the first window that has it among its predictions, except that a later window only scores the
// half that the one before did not reach: every token is then predicted from all tokens before it,
// or from at least S/2 of them. The first token's past is the separator alone.
//
// The output has one line per token (with the byte tokenizer: per byte), in order, each a JSON
// object:
//   {"offset": 12, "bytes": 1, "token": 104, "logprob": -1.25}
// - offset: of the token's first byte in the text
// - bytes: that the token stands for
// - token: its id (of a byte: the byte)
// - logprob: natural logarithm of p(token | past)
// Each document of a file of JSON lines is a text by itself: "offset" counts in it, and "line", the
// first field, is the number of its line in the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/exec.h"
#include "worker/train/score/trained_model.h"

namespace nsa {

// One window: inputs [begin, begin + length) of the sequence; the predictions of its inputs from
// `first` on (counted in the window) are taken.
struct ScoreWindow {
  int64_t begin = 0;
  int32_t length = 0;
  int32_t first = 0;
  bool operator==(const ScoreWindow&) const = default;
};

// The windows that score each of the `tokens` predictions of a sequence of tokens + 1 once.
std::vector<ScoreWindow> ScoreWindows(int64_t tokens, int32_t seq_len);

// ln p of each token of `tokens` given the separator and the tokens before it.
absl::StatusOr<std::vector<float>> ScoreTokens(const Exec& exec, const TrainedModel& trained,
                                               std::span<const uint16_t> tokens);

struct ScoreSummary {
  int64_t bytes = 0;
  int64_t tokens = 0;
  double nats = 0;  // −Σ logprob
};

// Scores the file `text` and writes the file `output`. The file is read as training reads it: JSON
// lines by the endings .jsonl and .ndjson, one document per line, otherwise one text; decompressed
// by the endings .gz and .zst. The errors of DocumentReader (NotFound; InvalidArgument for a file
// that is not text; DataLoss), then `output` is not written; Unavailable.
absl::StatusOr<ScoreSummary> ScoreFile(const Exec& exec, const TrainedModel& trained,
                                       const std::filesystem::path& text,
                                       const std::filesystem::path& output);

}  // namespace nsa
