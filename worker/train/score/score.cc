#include "worker/train/score/score.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/job/data_source.h"
#include "common/run/output_file.h"
#include "worker/train/data/read/documents.h"

namespace nsa::train {
namespace {

constexpr int32_t kBatch = 8;
// On a GPU, unless one sequence has more.
constexpr int32_t kBatchTokens = 16'384;
constexpr size_t kPieceBytes = 1 << 20;  // of lines that are held before they are written

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
absl::Status ScoreDocument(const Document& document, Scorer* scorer, OutputFile* file,
                           ScoreSummary* summary) {
  const TextTokenizer& tokenizer = scorer->trained().tokenizer();
  std::vector<Token> tokens;
  NSA_RETURN_IF_ERROR(tokenizer.Encode(document.text, &tokens));
  NSA_ASSIGN_OR_RETURN(const std::vector<float> scores, scorer->Score(tokens));
  const std::string line =
      document.line > 0 ? absl::StrFormat("\"line\": %d, ", document.line) : "";
  const bool added_space = AddsSpace(tokenizer, tokens, document.text.size());
  std::string lines;
  size_t offset = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    // A separator within the text is one byte too, though it decodes to nothing.
    const size_t decoded = std::max<size_t>(1, tokenizer.Decode(tokens[i]).size());
    const size_t bytes = decoded - (i == 0 && added_space ? 1 : 0);
    absl::StrAppendFormat(&lines,
                          "{%s\"offset\": %d, \"bytes\": %d, \"token\": %d, \"logprob\": %.9g}\n",
                          line, offset, bytes, tokens[i], scores[i]);
    offset += bytes;
    summary->nats -= scores[i];
    if (lines.size() < kPieceBytes) continue;
    NSA_RETURN_IF_ERROR(file->Append(lines));
    lines.clear();
  }
  summary->bytes += std::ssize(document.text);
  summary->tokens += static_cast<int64_t>(tokens.size());
  return file->Append(lines);
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

Scorer::Shape Scorer::ShapeFor(std::span<const ScoreWindow> windows) const {
  if (trained_.exec().backend == Backend::kCuda) {
    return {std::clamp(kBatchTokens / trained_.seq_len(), 1, kBatch), trained_.seq_len()};
  }
  // The first window is shorter than the model's sequences for a short text.
  return {static_cast<int32_t>(std::min<size_t>(kBatch, windows.size())), windows[0].length};
}

absl::Status Scorer::MakeModel(const Shape& shape) {
  if (model_ != nullptr && shape == shape_) return absl::OkStatus();
  model_ = nullptr;  // its memory is free before the next one takes some
  scratch_ = {};
  NSA_ASSIGN_OR_RETURN(model_, trained_.MakeModel(shape.batch, shape.seq_len));
  shape_ = shape;
  if (trained_.exec().backend == Backend::kCpu) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(scratch_,
                       cuda::DeviceMemory::Allocate(model_->scratch_bytes(), "kernel workspace"));
  return absl::OkStatus();
}

// Scores what at most `batch` windows predict.
absl::Status Scorer::ScoreBatch(std::span<const int32_t> sequence,
                                std::span<const ScoreWindow> windows, std::vector<float>* scores) {
  const int32_t separator = trained_.tokenizer().separator();
  const bool mask = trained_.spec().data().document_mask();
  const auto row_size = static_cast<size_t>(shape_.seq_len);
  const size_t size = static_cast<size_t>(shape_.batch) * row_size;
  std::vector<int32_t> inputs(size, separator), targets(size, -1), doc_start(mask ? size : 0);
  for (size_t row = 0; row < windows.size(); ++row) {
    FillRow(sequence, windows[row], separator, mask, &inputs[row * row_size],
            &targets[row * row_size], mask ? &doc_start[row * row_size] : nullptr);
  }
  Exec exec = trained_.exec();
  exec.workspace = scratch_.data();
  exec.workspace_bytes = scratch_.bytes();
  NSA_RETURN_IF_ERROR(model_->Forward(exec, {inputs, targets, doc_start}).status());
  const std::span<const float> losses = model_->token_losses(0);
  for (size_t row = 0; row < windows.size(); ++row) {
    const ScoreWindow& window = windows[row];
    for (int32_t t = window.first; t < window.length; ++t) {
      (*scores)[static_cast<size_t>(window.begin + t)] =
          -losses[row * row_size + static_cast<size_t>(t)];
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> Scorer::Score(std::span<const Token> tokens) {
  const std::vector<ScoreWindow> all =
      ScoreWindows(static_cast<int64_t>(tokens.size()), trained_.seq_len());
  std::vector<float> scores(tokens.size());
  if (all.empty()) return scores;
  NSA_RETURN_IF_ERROR(MakeModel(ShapeFor(all)));
  std::vector<int32_t> sequence = {trained_.tokenizer().separator()};
  sequence.insert(sequence.end(), tokens.begin(), tokens.end());
  std::span<const ScoreWindow> windows = all;
  while (!windows.empty()) {
    const size_t rows = std::min(static_cast<size_t>(shape_.batch), windows.size());
    NSA_RETURN_IF_ERROR(ScoreBatch(sequence, windows.first(rows), &scores));
    windows = windows.subspan(rows);
  }
  return scores;
}

absl::StatusOr<std::vector<float>> ScoreTokens(const TrainedModel& trained,
                                               std::span<const Token> tokens) {
  return Scorer(&trained).Score(tokens);
}

absl::Status NothingToPredict(const std::filesystem::path& text) {
  return absl::InvalidArgumentError(
      absl::StrCat(text.string(), ": 0 tokens to predict (at least 1); name a file with text"));
}

DocumentOptions ReadingOf(const TextFile& text, const v1::JobSpec& spec) {
  DocumentOptions options = {.source = TextSourceOf(text.path), .files = {text.path}};
  const std::string& field = text.field.empty() ? spec.data().text_field() : text.field;
  if (!field.empty()) options.text_field = field;
  return options;
}

absl::StatusOr<ScoreSummary> ScoreFile(const TrainedModel& trained, const TextFile& text,
                                       const std::filesystem::path& output) {
  ReadProgress progress;
  DocumentReader reader(ReadingOf(text, trained.spec()), &progress);
  Scorer scorer(&trained);
  NSA_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(output));
  ScoreSummary summary;
  Document document;
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool found, reader.Next(&document));
    if (!found) break;
    NSA_RETURN_IF_ERROR(ScoreDocument(document, &scorer, &file, &summary));
  }
  if (summary.tokens == 0) return NothingToPredict(text.path);
  NSA_RETURN_IF_ERROR(file.Publish());
  return summary;
}

}  // namespace nsa::train
