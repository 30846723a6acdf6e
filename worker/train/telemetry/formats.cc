#include "worker/train/telemetry/formats.h"

#include <unistd.h>

#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/base/clean_text.h"
#include "common/estimate/state_title.h"
#include "common/record/json_number.h"
#include "common/record/quantities.h"
#include "nlohmann/json.hpp"

namespace nsa::train {

const char kFallbackHeader[] = "step,fallback,count\n";
const char kSourcesHeader[] = "step,source,rows,loss,epoch,unix_seconds\n";
const char kValSetsHeader[] = "step,set,val_loss,ppl,bits_per_byte,tokens,unix_seconds\n";

namespace {

using Json = nlohmann::ordered_json;
using record::Form;
using record::Of;
using record::Quantity;

double Mib(int64_t bytes) { return std::round(double(bytes) / (1 << 20) * 1000) / 1000; }
double Gib(int64_t bytes) { return std::round(double(bytes) / (1 << 30) * 1e6) / 1e6; }

Json JsonOf(Form form, double value) {
  if (form.kind == Form::kFlag) return value != 0;
  if (form.kind == Form::kCount) return static_cast<int64_t>(value);
  return record::JsonNumber(value);
}

// An empty field where there is no value.
std::string Field(Form form, record::Value value) {
  if (!value.has_value()) return "";
  if (form.kind == Form::kDecimals) return absl::StrFormat("%.*f", form.digits, *value);
  if (form.kind == Form::kSignificant) return absl::StrFormat("%.*g", form.digits, *value);
  return absl::StrCat(static_cast<int64_t>(*value));
}

// Whether the quantity is a column of the table.
bool IsColumn(const Quantity& quantity, Csv table) {
  if (quantity.csv == nullptr) return false;
  if (table == Csv::kTraining) return quantity.of() == Of::kStep;
  if (table == Csv::kVal) return quantity.of() == Of::kValidation;
  return quantity.part == (table == Csv::kAudit ? record::Part::kAudit : record::Part::kSelection);
}

// The columns of a row, each after a comma.
template <typename FieldOf>
std::string Columns(Csv table, FieldOf field) {
  std::string row;
  for (const Quantity& quantity : record::kQuantities) {
    if (IsColumn(quantity, table)) absl::StrAppend(&row, ",", field(quantity));
  }
  return row;
}

std::string LayerColumns(Csv table, const v1::LayerStats& layer) {
  return Columns(table, [&](const Quantity& q) { return Field(q.form, ValueOf(q, layer)); });
}

// A layer without a gate or a selection has no such keys.
Json LayerJson(const v1::LayerStats& layer) {
  Json json;
  json["layer"] = layer.layer();
  for (const Quantity& quantity : record::kQuantities) {
    if (quantity.of() != Of::kLayer || quantity.heartbeat == nullptr) continue;
    if (!Has(layer, quantity.part)) continue;
    const record::Value value = ValueOf(quantity, layer);
    Json& entry = json[quantity.heartbeat];
    if (quantity.branch < 0) {
      entry = value.has_value() ? JsonOf(quantity.form, *value) : Json();
      continue;
    }
    if (entry.is_null()) entry = Json::array();
    if (value.has_value()) entry.push_back(JsonOf(quantity.form, *value));
  }
  return json;
}

// The quantities of a step for which `wanted` is true.
template <typename Wanted>
void AddQuantities(const v1::StepRecord& step, Wanted wanted, Json* line) {
  for (const Quantity& quantity : record::kQuantities) {
    if (quantity.of() != Of::kStep || quantity.heartbeat == nullptr || !wanted(quantity)) continue;
    if (quantity.word != nullptr) {
      (*line)[quantity.heartbeat] = quantity.word(step);
    } else if (quantity.form.kind == Form::kBytes) {
      const auto bytes = static_cast<int64_t>(quantity.step(step));
      (*line)[absl::StrCat(quantity.heartbeat, "_mib")] = Mib(bytes);
      (*line)[absl::StrCat(quantity.heartbeat, "_gib")] = Gib(bytes);
    } else {
      (*line)[quantity.heartbeat] = JsonOf(quantity.form, quantity.step(step));
    }
  }
}

void AddStep(const v1::StepRecord& step, bool logged, Json* line) {
  const auto is_memory = [](const Quantity& q) { return q.form.kind == Form::kBytes; };
  AddQuantities(step, is_memory, line);
  AddQuantities(
      step, [&](const Quantity& q) { return q.beat && !is_memory(q); }, line);
  if (!logged) return;
  AddQuantities(
      step, [](const Quantity& q) { return !q.beat; }, line);
  (*line)["fallbacks"] = Json::object();
  for (const auto& [name, count] : FallbacksOf(step)) (*line)["fallbacks"][name] = count;
  (*line)["layers"] = Json::array();
  for (const v1::LayerStats& layer : step.layers()) (*line)["layers"].push_back(LayerJson(layer));
}

const char* MessageName(const v1::WorkerRecord& record, bool logged) {
  switch (record.kind_case()) {
    case v1::WorkerRecord::kStarted:
      return "boot";
    case v1::WorkerRecord::kStep:
      return logged ? "progress" : "beat";
    case v1::WorkerRecord::kEval:
      return "eval";
    case v1::WorkerRecord::kSample:
      return "sample";
    case v1::WorkerRecord::kCheckpoint:
      return "checkpoint";
    case v1::WorkerRecord::kUpload:
      return "upload";
    case v1::WorkerRecord::kEvent:
      return "event";
    case v1::WorkerRecord::kFinished:
      return "end";
    case v1::WorkerRecord::KIND_NOT_SET:
      break;
  }
  return "";
}

void AddDetails(const v1::WorkerRecord& record, bool logged, Json* line) {
  if (record.has_started()) {
    (*line)["parameters"] = record.started().parameters();
    (*line)["device"] = record.started().device();
    (*line)["resumed_from"] = record.started().resumed_from();
  } else if (record.has_step()) {
    AddStep(record.step(), logged, line);
  } else if (record.has_eval()) {
    for (const Quantity& quantity : record::kQuantities) {
      if (quantity.of() != Of::kValidation || quantity.heartbeat == nullptr) continue;
      (*line)[quantity.heartbeat] = JsonOf(quantity.form, quantity.validation(record.eval()));
    }
    for (const v1::NamedLoss& set : record.eval().sets()) {
      (*line)["sets"][set.name()] = record::JsonNumber(set.loss());
    }
  } else if (record.has_sample()) {
    (*line)["tokens"] = record.sample().tokens();
    (*line)["seconds"] = record.sample().seconds();
    (*line)["error"] = record.sample().error();
  } else if (record.has_checkpoint()) {
    (*line)["path"] = record.checkpoint().path();
    (*line)["error"] = record.checkpoint().error();
    (*line)["stall_seconds"] = record.checkpoint().stall_seconds();
    (*line)["write_seconds"] = record.checkpoint().write_seconds();
  } else if (record.has_upload()) {
    (*line)["url"] = record.upload().url();
    (*line)["error"] = record.upload().error();
    (*line)["seconds"] = record.upload().seconds();
  } else if (record.has_event()) {
    (*line)["reason"] = record.event().reason();
    (*line)["text"] = record.event().text();
  } else if (record.has_finished()) {
    (*line)["reason"] = record.finished().reason();
    (*line)["text"] = record.finished().text();
  }
}

// The beginning of a text on one line.
std::string Beginning(const std::string& text) {
  constexpr size_t kMost = 120;
  return CleanLine(CutText(text, kMost));
}

std::string LogLineOf(const v1::SampleRecord& sample) {
  return absl::StrFormat("step %d | sample of \"%s\": %s | %d tokens, %.1f s", sample.step(),
                         Beginning(sample.prompt()),
                         sample.error().empty() ? Beginning(sample.text()) : sample.error(),
                         sample.tokens(), sample.seconds());
}

}  // namespace

std::string HeaderOf(Csv table) {
  const bool of_layer = table == Csv::kSelection || table == Csv::kAudit;
  return absl::StrCat("step", of_layer ? ",layer" : "",
                      Columns(table, [](const Quantity& quantity) { return quantity.csv; }),
                      table == Csv::kSelection ? "\n" : ",unix_seconds\n");
}

std::string TrainingRow(const v1::StepRecord& step, double unix_seconds) {
  return absl::StrFormat("%d%s,%.3f\n", step.step(),
                         Columns(Csv::kTraining,
                                 [&](const Quantity& q) {
                                   return q.word != nullptr ? q.word(step)
                                                            : Field(q.form, q.step(step));
                                 }),
                         unix_seconds);
}

std::string ValRow(const v1::EvalRecord& eval, double unix_seconds) {
  return absl::StrFormat(
      "%d%s,%.3f\n", eval.step(),
      Columns(Csv::kVal, [&](const Quantity& q) { return Field(q.form, q.validation(eval)); }),
      unix_seconds);
}

std::map<std::string, int64_t> FallbacksOf(const v1::StepRecord& step) {
  return {step.fallbacks().begin(), step.fallbacks().end()};
}

std::string FallbackRows(const v1::StepRecord& step) {
  std::string rows;
  int64_t total = 0;
  for (const auto& [name, count] : FallbacksOf(step)) {
    rows += absl::StrFormat("%d,%s,%d\n", step.step(), name, count);
    total += count;
  }
  return rows + absl::StrFormat("%d,total,%d\n", step.step(), total);
}

std::string SelectionRows(const v1::StepRecord& step) {
  std::string rows;
  for (const v1::LayerStats& layer : step.layers()) {
    if (!layer.has_selection()) continue;
    absl::StrAppend(&rows, step.step(), ",", layer.layer(), LayerColumns(Csv::kSelection, layer),
                    "\n");
  }
  return rows;
}

std::string AuditRows(const v1::StepRecord& step, double unix_seconds) {
  std::string rows;
  for (const v1::LayerStats& layer : step.layers()) {
    if (!layer.has_audit()) continue;
    absl::StrAppendFormat(&rows, "%d,%d%s,%.3f\n", step.step(), layer.layer(),
                          LayerColumns(Csv::kAudit, layer), unix_seconds);
  }
  return rows;
}

std::string SourceRows(const v1::StepRecord& step, double unix_seconds) {
  std::string rows;
  for (const v1::SourceShare& source : step.sources()) {
    const std::string loss = source.has_loss() ? absl::StrFormat("%.9g", source.loss()) : "";
    rows += absl::StrFormat("%d,%s,%d,%s,%d,%.3f\n", step.step(), source.name(), source.rows(),
                            loss, source.epoch(), unix_seconds);
  }
  return rows;
}

std::string ValSetRows(const v1::EvalRecord& eval, bool tokens_are_bytes, double unix_seconds) {
  std::string rows;
  for (const v1::NamedLoss& set : eval.sets()) {
    const record::Value bits =
        tokens_are_bytes ? record::Value(set.loss() / std::numbers::ln2) : std::nullopt;
    rows += absl::StrFormat("%d,%s,%.9g,%.6g,%s,%d,%.3f\n", eval.step(), set.name(), set.loss(),
                            std::exp(set.loss()), Field({Form::kSignificant, 6}, bits),
                            set.tokens(), unix_seconds);
  }
  return rows;
}

Scalars ScalarsOf(const v1::StepRecord& step) {
  Scalars scalars;
  for (const Quantity& quantity : record::kQuantities) {
    if (quantity.tensorboard == nullptr) continue;
    record::Value value;
    if (quantity.of() == Of::kStep) {
      value = quantity.step(step);
    } else if (quantity.of() == Of::kLayer) {
      record::Kept kept(quantity.keep);
      for (const v1::LayerStats& layer : step.layers()) {
        if (const record::Value one = ValueOf(quantity, layer)) kept.Add(*one);
      }
      value = kept.Result();
    }
    if (!value.has_value()) continue;
    const bool bytes = quantity.form.kind == Form::kBytes;
    scalars.emplace_back(quantity.tensorboard, bytes ? Gib(static_cast<int64_t>(*value)) : *value);
  }
  for (const v1::SourceShare& source : step.sources()) {
    if (!source.has_loss()) continue;
    scalars.emplace_back(absl::StrCat("source/", source.name()), source.loss());
  }
  return scalars;
}

Scalars ScalarsOf(const v1::EvalRecord& eval) {
  Scalars scalars;
  for (const Quantity& quantity : record::kQuantities) {
    if (quantity.tensorboard == nullptr || quantity.of() != Of::kValidation) continue;
    scalars.emplace_back(quantity.tensorboard, quantity.validation(eval));
  }
  for (const v1::NamedLoss& set : eval.sets()) {
    scalars.emplace_back(absl::StrCat("val_set/", set.name()), set.loss());
  }
  return scalars;
}

std::string HeartbeatLine(const v1::WorkerRecord& record, bool logged, int64_t step, int32_t rank) {
  const absl::Time time = absl::FromUnixNanos(record.unix_nanos());
  Json line = {{"ts", absl::ToDoubleSeconds(time - absl::UnixEpoch())},
               {"iso", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone())},
               {"pid", getpid()},
               {"rank", rank},
               {"step", step},
               {"msg", MessageName(record, logged)}};
  AddDetails(record, logged, &line);
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string SampleLine(const v1::SampleRecord& sample, double unix_seconds) {
  Json line = {{"step", sample.step()},       {"prompt", sample.prompt()},
               {"text", sample.text()},       {"tokens", sample.tokens()},
               {"seconds", sample.seconds()}, {"unix_seconds", unix_seconds}};
  if (!sample.error().empty()) line["error"] = sample.error();
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// " | loss 2.8333 | lr 3.00e-04": the quantities of a step that are numbers without a unit of time
// or size and have a short name.
std::string NumbersOf(const v1::StepRecord& step) {
  std::string text;
  for (const Quantity& quantity : record::kQuantities) {
    const record::View& view = quantity.view;
    if (quantity.step == nullptr || view.brief == nullptr || view.wide) continue;
    const double value = quantity.step(step);
    if (view.kind == record::View::kNumber) {
      absl::StrAppendFormat(&text, " | %s %.*f", view.brief, view.digits, value);
    } else if (view.kind == record::View::kRate) {
      absl::StrAppendFormat(&text, " | %s %.*e", view.brief, view.digits, value);
    }
  }
  return text;
}

std::string LogLine(const v1::WorkerRecord& record, int64_t steps) {
  if (record.has_step()) {
    const v1::StepRecord& step = record.step();
    return absl::StrFormat(
        "step %d/%d%s | %.0f tok/s | %.1f ms%s%s", step.step(), steps, NumbersOf(step),
        step.tokens_per_second(), step.times().step_seconds() * 1e3,
        step.data_source() == v1::DATA_SOURCE_SYNTHETIC ? " | SYNTHETIC data" : "",
        step.skipped_nonfinite() ? " | skipped: not finite" : "");
  }
  if (record.has_eval()) {
    std::string sets;
    for (const v1::NamedLoss& set : record.eval().sets()) {
      absl::StrAppendFormat(&sets, " | %s %.4f", set.name(), set.loss());
    }
    return absl::StrFormat("step %d/%d | validation loss %.4f | perplexity %.3f%s | %.1f s",
                           record.eval().step(), steps, record.eval().loss(),
                           std::exp(record.eval().loss()), sets, record.eval().seconds());
  }
  if (record.has_sample()) return LogLineOf(record.sample());
  if (record.has_checkpoint()) {
    const v1::CheckpointRecord& checkpoint = record.checkpoint();
    if (!checkpoint.error().empty()) {
      return absl::StrFormat("step %d | checkpoint failed: %s", checkpoint.step(),
                             checkpoint.error());
    }
    return absl::StrFormat("step %d | checkpoint %s, %.1f MiB, %.3f s stall, %.2f s write",
                           checkpoint.step(), checkpoint.path(), Mib(checkpoint.bytes()),
                           checkpoint.stall_seconds(), checkpoint.write_seconds());
  }
  if (record.has_upload()) {
    const v1::UploadRecord& upload = record.upload();
    if (!upload.error().empty()) {
      return absl::StrFormat("step %d | upload failed: %s", upload.step(), upload.error());
    }
    return absl::StrFormat("step %d | uploaded to %s, %.1f MiB, %.2f s", upload.step(),
                           upload.url(), Mib(upload.bytes()), upload.seconds());
  }
  if (record.has_event()) {
    return absl::StrCat(record.event().reason(), ": ", record.event().text());
  }
  if (record.has_started()) {
    return absl::StrFormat("%d parameters on %s%s%s", record.started().parameters(),
                           record.started().device(),
                           record.started().resumed_from().empty() ? "" : ", resumed from ",
                           record.started().resumed_from());
  }
  if (record.has_finished()) return EndText(record.finished());
  return "";
}

}  // namespace nsa::train
