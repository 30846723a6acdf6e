// Measures how well a trained model predicts a text, or the validation sets of its job: nsa-worker
// eval CHECKPOINT [TEXT].
#pragma once

#include <cstdint>
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

// A validation set of the model's job.
struct EvaluatedSet {
  std::string name;  // in data.val; "validation": the files of data.val_path
  Evaluation evaluation;
};

// Scores the files of data.val_path, if there are any, then those of each set of data.val, in the
// order of the names: whole files, with data.text_field, of which the records count that pass the
// filter of the set. FailedPrecondition when the job has no
// such files; InvalidArgument, naming the key, for prepared tokens, conversations and URLs; the
// errors of EvaluateFile().
absl::StatusOr<std::vector<EvaluatedSet>> EvaluateSets(const TrainedModel& trained);

// The evaluation as text:
//   12345 bytes, 12345 tokens
//   loss 2.1234 nats a token, perplexity 8.36, 3.0634 bits a byte
//   tokens seen       tokens  loss
//   1                      1  5.5451
//   2-3                    2  4.2013
//   …
std::string EvaluationText(const Evaluation& evaluation);

// The sets beside each other; "-" where a set has no such token:
//   tokens seen      validation       books
//   1                    5.5451      5.6011
//   2-3                  4.2013           -
//   …
//   all                  2.1234      4.9012
//   bits a byte          3.0634      7.0709
//   tokens                12345           1
std::string SetsText(const std::vector<EvaluatedSet>& sets);

// The same numbers, without rounding, for programs. A value that is not finite is null. Of sets:
// {"step", "sets": [{"name", "bytes", …}]}.
nlohmann::ordered_json EvaluationDocument(const Evaluation& evaluation, int64_t step);
nlohmann::ordered_json SetsDocument(const std::vector<EvaluatedSet>& sets, int64_t step);

}  // namespace nsa::train
