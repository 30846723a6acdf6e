#include "worker/train/score/evaluate.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/job/data_source.h"
#include "nlohmann/json.hpp"
#include "worker/train/data/read/documents.h"

namespace nsa::train {
namespace {

double Mean(double sum, int64_t count) {
  return sum / static_cast<double>(std::max<int64_t>(1, count));
}

void AddToBucket(int64_t seen, double nats, std::vector<Evaluation::Bucket>* buckets) {
  const auto bucket = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(seen)) - 1);
  if (buckets->size() <= bucket) buckets->resize(bucket + 1);
  (*buckets)[bucket].tokens += 1;
  (*buckets)[bucket].nats += nats;
}

}  // namespace

absl::Status AddDocument(std::string_view text, Scorer* scorer, Evaluation* evaluation) {
  std::vector<Token> tokens;
  const TrainedModel& trained = scorer->trained();
  NSA_RETURN_IF_ERROR(trained.tokenizer().Encode(text, &tokens));
  NSA_ASSIGN_OR_RETURN(const std::vector<float> scores, scorer->Score(tokens));
  const auto count = static_cast<int64_t>(tokens.size());
  for (const ScoreWindow& window : ScoreWindows(count, trained.seq_len())) {
    for (int32_t t = window.first; t < window.length; ++t) {
      AddToBucket(t + 1, -scores[window.begin + t], &evaluation->by_context);
    }
  }
  for (const float score : scores) evaluation->all.nats -= score;
  evaluation->all.tokens += count;
  evaluation->all.bytes += static_cast<int64_t>(text.size());
  return absl::OkStatus();
}

absl::StatusOr<Evaluation> EvaluateFile(const TrainedModel& trained, const TextFile& text) {
  ReadProgress progress;
  DocumentReader reader(ReadingOf(text, trained.spec()), &progress);
  Scorer scorer(&trained);
  Evaluation evaluation;
  Document document;
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool found, reader.Next(&document));
    if (!found && evaluation.all.tokens == 0) return NothingToPredict(text.path);
    if (!found) return evaluation;
    NSA_RETURN_IF_ERROR(AddDocument(document.text, &scorer, &evaluation));
  }
}

std::string EvaluationText(const Evaluation& evaluation) {
  const ScoreSummary& all = evaluation.all;
  const double loss = Mean(all.nats, all.tokens);
  std::string text = absl::StrFormat(
      "%d bytes, %d tokens\nloss %.4f nats a token, perplexity %.4g, %.4f bits a byte\n", all.bytes,
      all.tokens, loss, std::exp(loss), Mean(all.nats / std::numbers::ln2, all.bytes));
  absl::StrAppend(&text, "tokens seen       tokens  loss\n");
  for (size_t i = 0; i < evaluation.by_context.size(); ++i) {
    const Evaluation::Bucket& bucket = evaluation.by_context[i];
    if (bucket.tokens == 0) continue;
    const int64_t least = int64_t{1} << i;
    const std::string range = i == 0 ? "1" : absl::StrCat(least, "-", 2 * least - 1);
    absl::StrAppendFormat(&text, "%-15s %8d  %.4f\n", range, bucket.tokens,
                          Mean(bucket.nats, bucket.tokens));
  }
  return text;
}

nlohmann::ordered_json EvaluationDocument(const Evaluation& evaluation, int64_t step) {
  const ScoreSummary& all = evaluation.all;
  const double loss = Mean(all.nats, all.tokens);
  nlohmann::ordered_json by_context = nlohmann::ordered_json::array();
  for (size_t i = 0; i < evaluation.by_context.size(); ++i) {
    const Evaluation::Bucket& bucket = evaluation.by_context[i];
    if (bucket.tokens == 0) continue;
    const int64_t least = int64_t{1} << i;
    by_context.push_back({{"least_tokens_seen", least},
                          {"most_tokens_seen", 2 * least - 1},
                          {"tokens", bucket.tokens},
                          {"loss_nats_per_token", Mean(bucket.nats, bucket.tokens)}});
  }
  return {{"step", step},
          {"bytes", all.bytes},
          {"tokens", all.tokens},
          {"loss_nats_per_token", loss},
          {"perplexity", std::exp(loss)},
          {"bits_per_byte", Mean(all.nats / std::numbers::ln2, all.bytes)},
          {"by_context", std::move(by_context)}};
}

}  // namespace nsa::train
