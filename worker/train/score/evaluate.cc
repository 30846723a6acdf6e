#include "worker/train/score/evaluate.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/job/data/data_files.h"
#include "common/job/data/url.h"
#include "common/job/data_source.h"
#include "nlohmann/json.hpp"
#include "worker/train/data/read/documents.h"
#include "worker/train/data/read/source_files.h"

namespace nsa::train {
namespace {

double Mean(double sum, int64_t count) {
  return sum / static_cast<double>(std::max<int64_t>(1, count));
}

double Loss(const ScoreSummary& all) { return Mean(all.nats, all.tokens); }
double BitsPerByte(const ScoreSummary& all) {
  return Mean(all.nats / std::numbers::ln2, all.bytes);
}

// "1", "2-3", "4-7", …: the tokens seen in a bucket.
std::string RangeText(size_t bucket) {
  const int64_t least = int64_t{1} << bucket;
  return bucket == 0 ? "1" : absl::StrCat(least, "-", 2 * least - 1);
}

void AddToBucket(int64_t seen, double nats, std::vector<Evaluation::Bucket>* buckets) {
  const auto bucket = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(seen)) - 1);
  if (buckets->size() <= bucket) buckets->resize(bucket + 1);
  (*buckets)[bucket].tokens += 1;
  (*buckets)[bucket].nats += nats;
}

absl::Status AddDocuments(DocumentOptions options, Scorer* scorer, Evaluation* evaluation,
                          FilterTally* tally) {
  ReadProgress progress;
  DocumentReader reader(std::move(options), &progress);
  Document document;
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool found, reader.Next(&document));
    if (!found) break;
    NSA_RETURN_IF_ERROR(AddDocument(document.text, scorer, evaluation));
  }
  tally->Add(reader.tally());
  return absl::OkStatus();
}

// A file of a set that cannot be evaluated is refused.
absl::StatusOr<DocumentOptions> ReadingOfTexts(const DataFiles& files) {
  ReadProgress progress;
  NSA_ASSIGN_OR_RETURN(const auto paths, SourceFiles(&progress).Expand(files));
  const bool text = DataSourceInfoOf(files.source).has_text() && !files.conversations;
  const auto other = text ? std::ranges::find_if(paths, IsUrl) : paths.begin();
  if (other == paths.end()) return ReadingOfSet(files, paths);
  return absl::InvalidArgumentError(
      absl::StrCat(files.field, ": ", *other, files.conversations ? " has conversations" : "",
                   " (text, JSON lines or Parquet on this machine); name such a file"));
}

absl::StatusOr<EvaluatedSet> EvaluateSet(const TrainedModel& trained, const std::string& name,
                                         const std::vector<DataFiles>& parts) {
  EvaluatedSet set = {.name = name};
  Scorer scorer(&trained);
  FilterTally tally;
  for (const DataFiles& files : parts) {
    NSA_ASSIGN_OR_RETURN(DocumentOptions options, ReadingOfTexts(files));
    NSA_RETURN_IF_ERROR(AddDocuments(std::move(options), &scorer, &set.evaluation, &tally));
  }
  NSA_RETURN_IF_ERROR(CheckFilter(parts.front(), tally));
  if (set.evaluation.all.tokens == 0) return NothingToPredict(parts.front().paths.front());
  return set;
}

// Without the step.
nlohmann::ordered_json NumbersOf(const Evaluation& evaluation) {
  const ScoreSummary& all = evaluation.all;
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
  return {{"bytes", all.bytes},
          {"tokens", all.tokens},
          {"loss_nats_per_token", Loss(all)},
          {"perplexity", std::exp(Loss(all))},
          {"bits_per_byte", BitsPerByte(all)},
          {"by_context", std::move(by_context)}};
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
  Scorer scorer(&trained);
  Evaluation evaluation;
  FilterTally all;  // of every record: the file is not one of the job's
  NSA_RETURN_IF_ERROR(AddDocuments(ReadingOf(text, trained.spec()), &scorer, &evaluation, &all));
  if (evaluation.all.tokens == 0) return NothingToPredict(text.path);
  return evaluation;
}

absl::StatusOr<std::vector<EvaluatedSet>> EvaluateSets(const TrainedModel& trained) {
  const v1::DataSpec& data = trained.spec().data();
  std::vector<EvaluatedSet> sets;
  if (const std::vector<DataFiles> own = ValidationFiles(data); !own.empty()) {
    NSA_ASSIGN_OR_RETURN(sets.emplace_back(), EvaluateSet(trained, "validation", own));
  }
  for (const DataFiles& files : NamedValidationFiles(data)) {
    NSA_ASSIGN_OR_RETURN(sets.emplace_back(), EvaluateSet(trained, files.name, {files}));
  }
  if (!sets.empty()) return sets;
  return absl::FailedPreconditionError(
      "data.val_path, data.val: none (files of the model's job to evaluate); name a file");
}

std::string EvaluationText(const Evaluation& evaluation) {
  const ScoreSummary& all = evaluation.all;
  std::string text = absl::StrFormat(
      "%d bytes, %d tokens\nloss %.4f nats a token, perplexity %.4g, %.4f bits a byte\n", all.bytes,
      all.tokens, Loss(all), std::exp(Loss(all)), BitsPerByte(all));
  absl::StrAppend(&text, "tokens seen       tokens  loss\n");
  for (size_t i = 0; i < evaluation.by_context.size(); ++i) {
    const Evaluation::Bucket& bucket = evaluation.by_context[i];
    if (bucket.tokens == 0) continue;
    absl::StrAppendFormat(&text, "%-15s %8d  %.4f\n", RangeText(i), bucket.tokens,
                          Mean(bucket.nats, bucket.tokens));
  }
  return text;
}

std::string SetsText(const std::vector<EvaluatedSet>& sets) {
  std::string text;
  const auto row = [&](const std::string& title, auto cell) {
    absl::StrAppendFormat(&text, "%-15s", title);
    for (const EvaluatedSet& set : sets) {
      const int width = std::max(10, static_cast<int>(set.name.size()));
      absl::StrAppendFormat(&text, "  %*s", width, cell(set));
    }
    text += "\n";
  };
  const auto bucket = [](const EvaluatedSet& set, size_t i) {
    const auto& all = set.evaluation.by_context;
    return i < all.size() ? all[i] : Evaluation::Bucket{};
  };
  size_t buckets = 0;
  for (const EvaluatedSet& set : sets) {
    buckets = std::max(buckets, set.evaluation.by_context.size());
  }
  row("tokens seen", [](const EvaluatedSet& set) { return set.name; });
  for (size_t i = 0; i < buckets; ++i) {
    const auto known = [&](const EvaluatedSet& set) { return bucket(set, i).tokens > 0; };
    if (std::ranges::none_of(sets, known)) continue;
    row(RangeText(i), [&](const EvaluatedSet& set) {
      const Evaluation::Bucket one = bucket(set, i);
      return one.tokens > 0 ? absl::StrFormat("%.4f", Mean(one.nats, one.tokens)) : "-";
    });
  }
  row("all",
      [](const EvaluatedSet& set) { return absl::StrFormat("%.4f", Loss(set.evaluation.all)); });
  row("bits a byte", [](const EvaluatedSet& set) {
    return absl::StrFormat("%.4f", BitsPerByte(set.evaluation.all));
  });
  row("tokens", [](const EvaluatedSet& set) { return absl::StrCat(set.evaluation.all.tokens); });
  return text;
}

nlohmann::ordered_json EvaluationDocument(const Evaluation& evaluation, int64_t step) {
  nlohmann::ordered_json document = {{"step", step}};
  document.update(NumbersOf(evaluation));
  return document;
}

nlohmann::ordered_json SetsDocument(const std::vector<EvaluatedSet>& sets, int64_t step) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const EvaluatedSet& set : sets) {
    list.push_back({{"name", set.name}});
    list.back().update(NumbersOf(set.evaluation));
  }
  return {{"step", step}, {"sets", std::move(list)}};
}

}  // namespace nsa::train
