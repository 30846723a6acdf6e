#include "worker/train/telemetry/files.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/record/json_number.h"
#include "common/record/quantities.h"
#include "nlohmann/json.hpp"
#include "worker/train/telemetry/environment.h"
#include "worker/train/telemetry/formats.h"

namespace nsa::train {
namespace {

// The heartbeat also has a line for a step that is not logged, if this time has passed since the
// last.
constexpr int64_t kBeatNanos = 5'000'000'000;

using Json = nlohmann::ordered_json;

Json CorpusJson(const v1::WorkerStarted& started) {
  if (!started.has_corpus()) return nullptr;
  const v1::CorpusSummary& corpus = started.corpus();
  Json json = {{"documents", corpus.documents()},
               {"dropped_documents", corpus.dropped_documents()},
               {"tokens", corpus.tokens()},
               {"rows", corpus.rows()},
               {"val_documents", corpus.val_documents()},
               {"val_tokens", corpus.val_tokens()},
               {"val_rows", corpus.val_rows()},
               {"null_rows", corpus.null_rows()},
               {"empty_files", corpus.empty_files()}};
  if (!corpus.has_packing()) return json;
  const v1::PackingSummary& packing = corpus.packing();
  json["packing"] = {{"positions", packing.positions()},
                     {"answer_tokens", packing.answer_tokens()},
                     {"padding_tokens", packing.padding_tokens()},
                     {"cut_documents", packing.cut_documents()},
                     {"cut_tokens", packing.cut_tokens()},
                     {"unlearned_documents", packing.unlearned_documents()}};
  return json;
}

// Loss in the first row of training.csv; 0 if there is no row.
double FirstLoss(const Folder& out_dir) {
  const absl::StatusOr<std::string> content = out_dir.Read("training.csv");
  if (!content.ok()) return 0;
  const size_t row = content->find('\n');
  const size_t comma = row == std::string::npos ? row : content->find(',', row);
  return comma == std::string::npos ? 0 : std::strtod(content->c_str() + comma + 1, nullptr);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TelemetryFiles>> TelemetryFiles::Open(
    const ReporterOptions& options) {
  auto files = std::unique_ptr<TelemetryFiles>(new TelemetryFiles(options));
  NSA_ASSIGN_OR_RETURN(files->heartbeat_, files->OpenJsonLines(absl::StrFormat(
                                              "heartbeat_rank%d.jsonl", options.rank)));
  if (options.rank == 0) NSA_RETURN_IF_ERROR(files->OpenForRankZero());
  return files;
}

absl::Status TelemetryFiles::OpenForRankZero() {
  const Folder& out_dir = options_.out_dir;
  NSA_RETURN_IF_ERROR(OpenLines("training.csv", HeaderOf(Csv::kTraining), &training_));
  NSA_RETURN_IF_ERROR(OpenLines("val.csv", HeaderOf(Csv::kVal), &val_));
  NSA_RETURN_IF_ERROR(OpenLines("fallback_counters.csv", kFallbackHeader, &fallbacks_));
  NSA_RETURN_IF_ERROR(OpenLines("k_stats.csv", HeaderOf(Csv::kSelection), &selection_));
  NSA_RETURN_IF_ERROR(OpenLines("attention_audit.csv", HeaderOf(Csv::kAudit), &audit_));
  const v1::DataSpec& data = options_.spec.data();
  if (!data.mix().empty()) {
    NSA_RETURN_IF_ERROR(OpenLines("sources.csv", kSourcesHeader, &sources_));
  }
  if (!data.val().empty()) {
    NSA_RETURN_IF_ERROR(OpenLines("val_sets.csv", kValSetsHeader, &val_sets_));
  }
  if (!options_.spec.sample().prompts().empty()) {
    NSA_ASSIGN_OR_RETURN(samples_, OpenJsonLines("samples.jsonl"));
  }
  NSA_ASSIGN_OR_RETURN(Folder tb, out_dir.MakeFolder("tb"));
  NSA_ASSIGN_OR_RETURN(
      tensorboard_, TensorBoardFile::Open(std::move(tb), options_.resumed_step,
                                          absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch())));
  summary_.first.set_loss(FirstLoss(out_dir));
  summary_.best.set_step(options_.best_val_step);
  summary_.best.set_loss(options_.best_val_loss);
  return out_dir.WriteAtomically("env.json", EnvironmentJson(options_));
}

absl::Status TelemetryFiles::OpenLines(const std::string& name, const std::string& header,
                                       std::unique_ptr<AppendFile>* file) {
  NSA_ASSIGN_OR_RETURN(
      *file, AppendFile::Open(options_.out_dir, name, header, [&](std::string_view content) {
        return KeepLines(content, header, options_.resumed_step, StepOfCsv);
      }));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<AppendFile>> TelemetryFiles::OpenJsonLines(
    const std::string& name) const {
  return AppendFile::Open(options_.out_dir, name, "", [&](std::string_view content) {
    return KeepLines(content, "", options_.resumed_step, StepOfJson);
  });
}

bool TelemetryFiles::IsLogged(int64_t step) const {
  const v1::TrainSpec& train = options_.spec.train();
  const int64_t every = std::max<int64_t>(1, train.log_every());
  return step % every == 0 || step - 1 == options_.resumed_step || step == train.steps();
}

int64_t TelemetryFiles::LastStep() const {
  if (summary_.finished.outcome() != v1::OUTCOME_UNSPECIFIED) return summary_.finished.step();
  const bool began = options_.resumed_step != std::numeric_limits<int64_t>::max();
  return std::max(began ? options_.resumed_step : 0, summary_.last.step());
}

std::vector<TelemetryFiles::Written> TelemetryFiles::Write(const v1::WorkerRecord& record) {
  Summarise(record);
  const double unix_seconds = static_cast<double>(record.unix_nanos()) * 1e-9;
  std::vector<Written> written;
  WriteHeartbeat(record, &written);
  if (options_.rank != 0) return written;
  if (record.has_step()) {
    WriteAudit(record.step(), unix_seconds, &written);
    if (IsLogged(record.step().step())) WriteStep(record.step(), unix_seconds, &written);
  } else if (record.has_eval()) {
    WriteEval(record.eval(), unix_seconds, &written);
  } else if (record.has_sample() && samples_ != nullptr) {
    written.push_back({"", samples_->Append(SampleLine(record.sample(), unix_seconds))});
  }
  return written;
}

void TelemetryFiles::Summarise(const v1::WorkerRecord& record) {
  if (record.has_started()) {
    summary_.started = record.started();
  } else if (record.has_step()) {
    if (summary_.first.loss() == 0) summary_.first = record.step();
    summary_.last = record.step();
    summary_.tokens_here += record.step().tokens();
    summary_.seconds_here += record.step().times().step_seconds();
  } else if (record.has_eval()) {
    summary_.eval = record.eval();
    const double loss = record.eval().loss();
    if (std::isfinite(loss) && (summary_.best.step() == 0 || loss < summary_.best.loss())) {
      summary_.best = record.eval();
    }
  } else if (record.has_finished()) {
    summary_.finished = record.finished();
  }
}

void TelemetryFiles::WriteHeartbeat(const v1::WorkerRecord& record, std::vector<Written>* written) {
  const bool logged = record.has_step() && IsLogged(record.step().step());
  const bool due = record.unix_nanos() - last_heartbeat_nanos_ >= kBeatNanos;
  if (record.has_step() && !logged && !due) return;
  last_heartbeat_nanos_ = record.unix_nanos();
  written->push_back(
      {"heartbeat", heartbeat_->Append(HeartbeatLine(record, logged, LastStep(), options_.rank))});
}

void TelemetryFiles::WriteStep(const v1::StepRecord& step, double unix_seconds,
                               std::vector<Written>* written) {
  written->push_back({"training", training_->Append(TrainingRow(step, unix_seconds))});
  written->push_back({"fallbacks", fallbacks_->Append(FallbackRows(step))});
  const std::string selection = SelectionRows(step);
  if (!selection.empty()) written->push_back({"selection", selection_->Append(selection)});
  if (sources_ != nullptr) {
    written->push_back({"sources", sources_->Append(SourceRows(step, unix_seconds))});
  }
  written->push_back({"tb", tensorboard_->Add(unix_seconds, step.step(), ScalarsOf(step))});
}

void TelemetryFiles::WriteAudit(const v1::StepRecord& step, double unix_seconds,
                                std::vector<Written>* written) {
  const std::string rows = AuditRows(step, unix_seconds);
  if (!rows.empty()) written->push_back({"", audit_->Append(rows)});
}

void TelemetryFiles::WriteEval(const v1::EvalRecord& eval, double unix_seconds,
                               std::vector<Written>* written) {
  written->push_back({"", val_->Append(ValRow(eval, unix_seconds))});
  if (val_sets_ != nullptr) {
    const bool bytes = options_.spec.data().tokenizer() == v1::TOKENIZER_BYTE;
    written->push_back({"", val_sets_->Append(ValSetRows(eval, bytes, unix_seconds))});
  }
  written->push_back({"tb", tensorboard_->Add(unix_seconds, eval.step(), ScalarsOf(eval))});
}

absl::Status TelemetryFiles::WriteMetrics(int64_t dropped) {
  if (options_.rank != 0) return absl::OkStatus();
  const bool ended = summary_.finished.outcome() != v1::OUTCOME_UNSPECIFIED;
  const bool evaluated = summary_.eval.step() > 0;
  const bool has_best = summary_.best.step() > 0;
  const bool stepped = summary_.last.step() > 0;
  Json fallbacks = Json::object();
  for (const auto& [name, count] : FallbacksOf(summary_.last)) fallbacks[name] = count;
  const Json json = {
      {"name", options_.spec.name()},
      {"job_id", options_.job_id},
      {"state", ended ? summary_.finished.reason() : "RUNNING"},
      {"text", summary_.finished.text()},
      {"step", LastStep()},
      {"steps", options_.spec.train().steps()},
      {"resumed_step", summary_.started.resumed_step()},
      {"total_tokens", stepped ? Json(summary_.last.total_tokens()) : Json(nullptr)},
      {"loss_first", record::JsonNumber(summary_.first.loss())},
      {"loss_last", stepped ? record::JsonNumber(summary_.last.loss()) : Json(nullptr)},
      {"val_loss_last", evaluated ? record::JsonNumber(summary_.eval.loss()) : Json(nullptr)},
      {"val_loss_best", has_best ? record::JsonNumber(summary_.best.loss()) : Json(nullptr)},
      {"val_best_step", has_best ? Json(summary_.best.step()) : Json(nullptr)},
      {"toks_per_s_mean",
       summary_.seconds_here > 0
           ? record::JsonNumber(double(summary_.tokens_here) / summary_.seconds_here)
           : Json(nullptr)},
      {"train_seconds", summary_.seconds_here},
      {"parameters", summary_.started.parameters()},
      {"device", summary_.started.device()},
      {"world_size", options_.world_size},
      {"seq_len", options_.spec.train().seq_len()},
      {"batch_size", options_.spec.train().batch_size()},
      {"data_source", record::SourceName(summary_.last.data_source())},
      {"corpus", CorpusJson(summary_.started)},
      {"fallbacks", fallbacks},
      {"telemetry_dropped", dropped}};
  return options_.out_dir.WriteAtomically(
      "metrics.json", json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

absl::Status TelemetryFiles::CheckInPlace() const {
  NSA_RETURN_IF_ERROR(options_.out_dir.CheckInPlace());
  for (const auto* file : {&heartbeat_, &training_, &val_, &fallbacks_, &selection_, &audit_,
                           &sources_, &val_sets_, &samples_}) {
    if (*file != nullptr) NSA_RETURN_IF_ERROR((*file)->CheckInPlace());
  }
  return tensorboard_ == nullptr ? absl::OkStatus() : tensorboard_->CheckInPlace();
}

}  // namespace nsa::train
