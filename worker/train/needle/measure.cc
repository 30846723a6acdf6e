#include "worker/train/needle/measure.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "worker/train/data/random.h"
#include "worker/train/decode/decoder.h"

namespace nsa::train {
namespace {

constexpr int32_t kLeastDefaultLength = 256;
// No tokenizer is expected to do better on words.
constexpr int64_t kMostBytesPerToken = 32;

absl::Status CheckRange(const char* what, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "needle: %s %d (from %d to %d); choose one in this range", what, value, least, most));
}

absl::Status Check(const NeedleOptions& options) {
  NSA_RETURN_IF_ERROR(
      CheckRange("number of lengths", std::ssize(options.lengths), 0, kMostNeedleLengths));
  for (const int32_t length : options.lengths) {
    NSA_RETURN_IF_ERROR(CheckRange("length", length, kLeastNeedleLength, kMostNeedleLength));
  }
  NSA_RETURN_IF_ERROR(CheckRange("depths", options.depths, 1, kMostDepths));
  return CheckRange("trials", options.trials, 1, kMostTrials);
}

std::vector<int32_t> LengthsOf(const NeedleOptions& options, int32_t seq_len) {
  if (!options.lengths.empty()) return options.lengths;
  std::vector<int32_t> lengths;
  for (int32_t length = kLeastDefaultLength; length < seq_len; length *= 2) {
    lengths.push_back(length);
  }
  lengths.push_back(std::max(seq_len, kLeastNeedleLength));
  return lengths;
}

absl::StatusOr<NeedleTokens> Encode(const TextTokenizer& tokenizer, const TaskDocument& document) {
  std::vector<Token> prompt, whole;
  NSA_RETURN_IF_ERROR(tokenizer.Encode(document.prompt, &prompt));
  NSA_RETURN_IF_ERROR(tokenizer.Encode(document.prompt + document.answer, &whole));
  if (whole.size() <= prompt.size() || !std::equal(prompt.begin(), prompt.end(), whole.begin())) {
    return absl::InvalidArgumentError(
        "needle: the model's tokenizer joins the answer with the word before it, so the answer "
        "cannot be asked for; use a model with another tokenizer");
  }
  NeedleTokens tokens{.prompt = {tokenizer.separator()}};
  tokens.prompt.insert(tokens.prompt.end(), prompt.begin(), prompt.end());
  tokens.answer.assign(whole.begin() + std::ssize(prompt), whole.end());
  return tokens;
}

int64_t SizeOf(const NeedleTokens& tokens) {
  return std::ssize(tokens.prompt) + std::ssize(tokens.answer);
}

int32_t Likeliest(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

absl::StatusOr<bool> Finds(const NeedleTokens& tokens, int32_t vocab, Decoder* decoder) {
  decoder->Reset();
  NSA_ASSIGN_OR_RETURN(std::span<const float> logits, decoder->Prefill(tokens.prompt));
  for (const int32_t wanted : tokens.answer) {
    if (Likeliest(logits.first(static_cast<size_t>(vocab))) != wanted) return false;
    NSA_ASSIGN_OR_RETURN(logits, decoder->Step(wanted));
  }
  return true;
}

double DepthOf(int32_t place, int32_t places) {
  return places == 1 ? 0.5 : static_cast<double>(place) / (places - 1);
}

}  // namespace

absl::StatusOr<NeedleTokens> NeedleOf(const TextTokenizer& tokenizer, NeedleTask task,
                                      const Filler& filler, int32_t length, double depth,
                                      uint64_t seed) {
  const auto make = [&](int64_t bytes) {
    return Encode(tokenizer,
                  MakeTaskDocument(task, filler, static_cast<size_t>(bytes), depth, seed));
  };
  // The longest document that fits lies between `fits` and `above`.
  auto fits = static_cast<int64_t>(LeastBytes(task)), above = kMostBytesPerToken * length + fits;
  NSA_ASSIGN_OR_RETURN(NeedleTokens best, make(fits));
  if (SizeOf(best) > length) {
    return absl::InvalidArgumentError(
        absl::StrFormat("needle: length %d (at least %d, the shortest document of the task %s in "
                        "this model's tokens); choose a longer one",
                        length, SizeOf(best), NameOf(task)));
  }
  while (above - fits > 1 && SizeOf(best) < length) {
    const int64_t bytes = fits + (above - fits) / 2;
    NSA_ASSIGN_OR_RETURN(NeedleTokens longer, make(bytes));
    if (SizeOf(longer) > length) {
      above = bytes;
    } else {
      fits = bytes;
      best = std::move(longer);
    }
  }
  return best;
}

absl::StatusOr<std::vector<NeedleCell>> MeasureNeedles(
    const TrainedModel& trained, const Filler& filler, const NeedleOptions& options,
    const std::function<void(const NeedleCell&)>& on_cell) {
  NSA_RETURN_IF_ERROR(Check(options));
  const TextTokenizer& tokenizer = trained.tokenizer();
  std::vector<NeedleCell> cells;
  for (const int32_t length : LengthsOf(options, trained.seq_len())) {
    NSA_ASSIGN_OR_RETURN(const std::unique_ptr<Decoder> decoder, trained.MakeDecoder(length));
    for (int32_t place = 0; place < options.depths; ++place) {
      NeedleCell cell{length, DepthOf(place, options.depths), 0, options.trials};
      for (int32_t trial = 0; trial < options.trials; ++trial) {
        const uint64_t seed =
            Mix(static_cast<uint64_t>(options.seed), cells.size(), static_cast<uint64_t>(trial));
        NSA_ASSIGN_OR_RETURN(const NeedleTokens tokens,
                             NeedleOf(tokenizer, options.task, filler, length, cell.depth, seed));
        NSA_ASSIGN_OR_RETURN(const bool found, Finds(tokens, tokenizer.vocab(), decoder.get()));
        cell.found += found ? 1 : 0;
      }
      if (on_cell) on_cell(cell);
      cells.push_back(cell);
    }
  }
  return cells;
}

std::string NeedleTable(const std::vector<NeedleCell>& cells) {
  std::vector<int32_t> lengths;
  std::vector<double> depths;
  for (const NeedleCell& cell : cells) {
    if (lengths.empty() || lengths.back() != cell.length) lengths.push_back(cell.length);
    if (lengths.size() == 1) depths.push_back(cell.depth);
  }
  std::string table = "depth";
  for (const int32_t length : lengths) absl::StrAppendFormat(&table, "%9d", length);
  table += "\n";
  for (size_t row = 0; row < depths.size(); ++row) {
    absl::StrAppendFormat(&table, "%4.0f%%", 100 * depths[row]);
    for (size_t column = 0; column < lengths.size(); ++column) {
      const NeedleCell& cell = cells[column * depths.size() + row];
      absl::StrAppendFormat(&table, "%8.0f%%", 100.0 * cell.found / cell.trials);
    }
    table += "\n";
  }
  return table;
}

std::string NeedleCsv(const std::vector<NeedleCell>& cells, NeedleTask task) {
  std::string csv = "length,depth,found,trials,task\n";
  for (const NeedleCell& cell : cells) {
    absl::StrAppendFormat(&csv, "%d,%.4g,%d,%d,%s\n", cell.length, cell.depth, cell.found,
                          cell.trials, NameOf(task));
  }
  return csv;
}

nlohmann::ordered_json NeedleDocument(const std::vector<NeedleCell>& cells, NeedleTask task,
                                      int64_t step) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const NeedleCell& cell : cells) {
    list.push_back({{"context_tokens", cell.length},
                    {"depth_ratio", cell.depth},
                    {"found", cell.found},
                    {"trials", cell.trials}});
  }
  return {{"step", step}, {"task", NameOf(task)}, {"cells", std::move(list)}};
}

}  // namespace nsa::train
