// How often a trained model finds what is hidden in its context, by the length of the context and
// the place.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "worker/train/data/tokenize/tokenizer.h"
#include "worker/train/needle/task.h"
#include "worker/train/score/trained_model.h"

namespace nsa::train {

struct NeedleOptions {
  NeedleTask task = NeedleTask::kKey;
  // Tokens of the context, the separator and the answer included. Empty: the model's train.seq_len,
  // and the powers of two below it from 256 on.
  std::vector<int32_t> lengths;
  int32_t depths = 5;   // places of what is hidden, from the beginning to the end in equal steps
  int32_t trials = 10;  // documents for each length and place
  int64_t seed = 1;
};

inline constexpr int32_t kMostNeedleLengths = 32;
inline constexpr int32_t kLeastNeedleLength = 32, kMostNeedleLength = 1'048'576;
inline constexpr int32_t kMostDepths = 101;
inline constexpr int32_t kMostTrials = 1'000;

struct NeedleCell {
  int32_t length = 0;
  double depth = 0;  // 0 to 1
  int32_t found = 0, trials = 0;
  bool operator==(const NeedleCell&) const = default;
};

// The tokens of a document: the separator and the prompt, then those of the answer.
struct NeedleTokens {
  std::vector<int32_t> prompt;
  std::vector<int32_t> answer;
};

// A document of at most `length` tokens, and as long as possible up to one filler word.
// InvalidArgument when the shortest has more, and for a tokenizer that joins the answer with the
// word before it.
absl::StatusOr<NeedleTokens> NeedleOf(const TextTokenizer& tokenizer, NeedleTask task,
                                      const Filler& filler, int32_t length, double depth,
                                      uint64_t seed);

// Measures each length and depth, lengths first. An answer is found when the model's likeliest
// tokens are its tokens, one after the other. The decoder keeps keys and values, so a document
// costs one pass over its tokens. `on_cell`, if set, is called with each cell as soon as it is
// known. InvalidArgument for options outside their ranges.
absl::StatusOr<std::vector<NeedleCell>> MeasureNeedles(
    const TrainedModel& trained, const Filler& filler, const NeedleOptions& options,
    const std::function<void(const NeedleCell&)>& on_cell = {});

// The cells as a table: a row for each depth, a column for each length, shares in percent.
std::string NeedleTable(const std::vector<NeedleCell>& cells);

// The cells as CSV: length,depth,found,trials,task.
std::string NeedleCsv(const std::vector<NeedleCell>& cells, NeedleTask task);

// The cells of a model after `step` for programs.
nlohmann::ordered_json NeedleDocument(const std::vector<NeedleCell>& cells, NeedleTask task,
                                      int64_t step);

}  // namespace nsa::train
