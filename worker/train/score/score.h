// Computes the probability that a trained model gives to a text:
// nsa-worker score CHECKPOINT TEXT -o scores.jsonl.
//
// The text is tokenised, the document separator is put in front, and the sequence is covered by
// windows of S tokens (S = train.seq_len), each beginning S/2 tokens after the one before. A
// token is scored in the first window that predicts it, so windows after the first score their
// second half only. Every token is therefore predicted from all tokens before it, or from at least
// S/2 of them. The first token is predicted from the separator alone.
//
// The output has one line per token (with the byte tokenizer: per byte), in order. A line is a JSON
// object:
//   {"offset": 12, "bytes": 1, "token": 104, "logprob": -1.25}
//
//   offset   position of the token's first byte in the text
//   bytes    number of bytes that the token stands for
//   token    id of the token (with the byte tokenizer: the byte)
//   logprob  natural logarithm of p(token | tokens before it)
//
// Each document of a file of JSON lines is a text by itself: "offset" counts in it, and the first
// field, "line", is the number of its line in the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"
#include "worker/train/data/read/documents.h"
#include "worker/train/model/model.h"
#include "worker/train/score/trained_model.h"

namespace nsa::train {

// One window: its inputs are tokens [begin, begin + length) of the sequence. The predictions of its
// inputs from index `first` in the window on are used.
struct ScoreWindow {
  int64_t begin = 0;
  int32_t length = 0;
  int32_t first = 0;
  bool operator==(const ScoreWindow&) const = default;
};

// Windows that score each of the `tokens` predictions of a sequence of tokens + 1 tokens once.
std::vector<ScoreWindow> ScoreWindows(int64_t tokens, int32_t seq_len);

// Scores texts on the device of a trained model. The memory for a text is kept for the next one,
// if that has the same shape. On a GPU all have: rows are filled up to the length of the model's
// sequences, since the matrix library times its algorithms for every new shape.
class Scorer {
 public:
  // `trained` outlives the scorer.
  explicit Scorer(const TrainedModel* trained) : trained_(*trained) {}

  const TrainedModel& trained() const { return trained_; }

  // Returns ln p of each token of `tokens`, given the separator and the tokens before it.
  absl::StatusOr<std::vector<float>> Score(std::span<const Token> tokens);

 private:
  struct Shape {
    int32_t batch = 0, seq_len = 0;
    bool operator==(const Shape&) const = default;
  };
  Shape ShapeFor(std::span<const ScoreWindow> windows) const;
  absl::Status MakeModel(const Shape& shape);
  absl::Status ScoreBatch(std::span<const int32_t> sequence, std::span<const ScoreWindow> windows,
                          std::vector<float>* scores);

  const TrainedModel& trained_;
  Shape shape_;  // of the model
  std::unique_ptr<Model> model_;
  cuda::DeviceMemory scratch_;  // of its kernels, on a GPU
};

// The same for one text.
absl::StatusOr<std::vector<float>> ScoreTokens(const TrainedModel& trained,
                                               std::span<const Token> tokens);

struct ScoreSummary {
  int64_t bytes = 0;
  int64_t tokens = 0;
  double nats = 0;  // −Σ logprob
};

// InvalidArgument: the file has no token, whose loss would be 0, as of a perfect model.
absl::Status NothingToPredict(const std::filesystem::path& text);

// A file of text. It is read as training reads it: JSON lines by the endings .jsonl and .ndjson,
// one document per line, Parquet by .parquet, otherwise one text; decompressed by the endings .gz
// and .zst.
struct TextFile {
  std::string path;
  // The field of JSON lines or the column of Parquet that has the text; empty: that of the model's
  // job.
  std::string field = {};
};

DocumentOptions ReadingOf(const TextFile& text, const v1::JobSpec& spec);

// Scores the file `text` and writes the file `output`. The errors of DocumentReader (NotFound;
// InvalidArgument for a file that is not text; DataLoss) and InvalidArgument for a file without a
// token; those of OutputFile. With an error `output` is what it was before.
absl::StatusOr<ScoreSummary> ScoreFile(const TrainedModel& trained, const TextFile& text,
                                       const std::filesystem::path& output);

}  // namespace nsa::train
