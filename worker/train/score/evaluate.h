// Measures how well a trained model predicts a text: nsa-worker eval CHECKPOINT TEXT.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "worker/train/score/score.h"
#include "worker/train/score/trained_model.h"

namespace nsa::train {

struct Evaluation {
  ScoreSummary all;

  // The tokens by how many tokens before them the model saw, the separator included: element i has
  // those with 2^i … 2^(i+1) − 1.
  struct Bucket {
    int64_t tokens = 0;
    double nats = 0;  // −Σ logprob
  };
  std::vector<Bucket> by_context;
};

// Scores the tokens of a document (score.h) and adds them.
absl::Status AddDocument(std::string_view text, Scorer* scorer, Evaluation* evaluation);

// Scores the file `text`, read as ScoreFile() reads it, with the same errors.
absl::StatusOr<Evaluation> EvaluateFile(const TrainedModel& trained, const TextFile& text);

// The evaluation as text:
//   12345 bytes, 12345 tokens
//   loss 2.1234 nats a token, perplexity 8.36, 3.0634 bits a byte
//   tokens seen       tokens  loss
//   1                      1  5.5451
//   2-3                    2  4.2013
//   …
std::string EvaluationText(const Evaluation& evaluation);

// The same numbers, without rounding, for programs. A value that is not finite is null.
nlohmann::ordered_json EvaluationDocument(const Evaluation& evaluation, int64_t step);

}  // namespace nsa::train
