#include "worker/train/score/score.h"

#include <algorithm>
#include <fstream>
#include <memory>
#include <ostream>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/job/data_source.h"
#include "worker/train/data/read/documents.h"

namespace nsa::train {
namespace {

constexpr int32_t kBatch = 8;

// Fills one row of a batch from `sequence`, which is the separator and the tokens. Sets the targets
// that the window scores; the caller has set all targets to −1.
void FillRow(std::span<const int32_t> sequence, const ScoreWindow& window, int32_t separator,
             bool document_mask, int32_t* inputs, int32_t* targets, int32_t* doc_start) {
  int32_t start = 0;
  for (int32_t t = 0; t < window.length; ++t) {
    const auto at = static_cast<size_t>(window.begin + t);
    inputs[t] = sequence[at];
    if (t >= window.first) targets[t] = sequence[at + 1];
    if (inputs[t] == separator) start = t;
    if (document_mask) doc_start[t] = start;
  }
}

// Scores a document, appends its lines to `file` and adds it to the summary.
absl::Status ScoreDocument(const Exec& exec, const TrainedModel& trained, const Document& document,
                           std::ostream* file, ScoreSummary* summary) {
  std::vector<Token> tokens;
  NSA_RETURN_IF_ERROR(trained.tokenizer().Encode(document.text, &tokens));
  NSA_ASSIGN_OR_RETURN(const std::vector<float> scores, ScoreTokens(exec, trained, tokens));
  const std::string line =
      document.line > 0 ? absl::StrFormat("\"line\": %d, ", document.line) : "";
  size_t offset = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    // A separator within the text is one byte too, though it decodes to nothing.
    const size_t bytes = std::max<size_t>(1, trained.tokenizer().Decode(tokens[i]).size());
    *file << absl::StrFormat(
        "{%s\"offset\": %d, \"bytes\": %d, \"token\": %d, \"logprob\": %.9g}\n", line, offset,
        bytes, tokens[i], scores[i]);
    offset += bytes;
    summary->nats -= scores[i];
  }
  summary->bytes += static_cast<int64_t>(offset);
  summary->tokens += static_cast<int64_t>(tokens.size());
  return absl::OkStatus();
}

}  // namespace

std::vector<ScoreWindow> ScoreWindows(int64_t tokens, int32_t seq_len) {
  const int64_t stride = std::max(1, seq_len / 2);
  std::vector<ScoreWindow> windows;
  int64_t scored = 0;
  for (int64_t begin = 0; scored < tokens; begin += stride) {
    ScoreWindow window;
    window.begin = begin;
    window.length = static_cast<int32_t>(std::min<int64_t>(seq_len, tokens - begin));
    window.first = static_cast<int32_t>(scored - begin);
    windows.push_back(window);
    scored = begin + window.length;
  }
  return windows;
}

absl::StatusOr<std::vector<float>> ScoreTokens(const Exec& exec, const TrainedModel& trained,
                                               std::span<const Token> tokens) {
  const std::vector<ScoreWindow> windows =
      ScoreWindows(static_cast<int64_t>(tokens.size()), trained.seq_len());
  if (windows.empty()) return std::vector<float>();
  const int32_t seq_len = windows[0].length;  // shorter than the model's for a short text
  const int32_t batch = static_cast<int32_t>(std::min<size_t>(kBatch, windows.size()));
  NSA_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, trained.MakeModel(batch, seq_len));
  const int32_t separator = trained.tokenizer().separator();
  const bool mask = trained.spec().data().document_mask();
  std::vector<int32_t> sequence = {separator};
  sequence.insert(sequence.end(), tokens.begin(), tokens.end());

  std::vector<float> scores(tokens.size());
  const size_t row_size = static_cast<size_t>(seq_len);
  for (size_t next = 0; next < windows.size(); next += static_cast<size_t>(batch)) {
    const size_t rows = std::min(static_cast<size_t>(batch), windows.size() - next);
    std::vector<int32_t> inputs(batch * row_size, separator), targets(batch * row_size, -1);
    std::vector<int32_t> doc_start(mask ? batch * row_size : 0);
    for (size_t row = 0; row < rows; ++row) {
      FillRow(sequence, windows[next + row], separator, mask, &inputs[row * row_size],
              &targets[row * row_size], mask ? &doc_start[row * row_size] : nullptr);
    }
    NSA_RETURN_IF_ERROR(model->Forward(exec, {inputs, targets, doc_start}).status());
    const std::span<const float> losses = model->token_losses();
    for (size_t row = 0; row < rows; ++row) {
      const ScoreWindow& window = windows[next + row];
      for (int32_t t = window.first; t < window.length; ++t) {
        scores[static_cast<size_t>(window.begin + t)] =
            -losses[row * row_size + static_cast<size_t>(t)];
      }
    }
  }
  return scores;
}

absl::StatusOr<ScoreSummary> ScoreFile(const Exec& exec, const TrainedModel& trained,
                                       const std::filesystem::path& text,
                                       const std::filesystem::path& output) {
  const v1::DataSource source = TextSourceOf(text.string());
  ReadProgress progress;
  DocumentReader reader({.source = source, .files = {text}}, &progress);
  std::ofstream file;
  ScoreSummary summary;
  Document document;
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool found, reader.Next(&document));
    // Only now, so that a text that cannot be read leaves an older output as it is.
    if (!file.is_open()) file.open(output);
    if (!found) break;
    NSA_RETURN_IF_ERROR(ScoreDocument(exec, trained, document, &file, &summary));
  }
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat(output.string(), ": could not be written"));
  return summary;
}

}  // namespace nsa::train
