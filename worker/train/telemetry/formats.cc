#include "worker/train/telemetry/formats.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/base/clean_text.h"
#include "common/nsa/branch.h"
#include "nlohmann/json.hpp"

namespace nsa::train {

const char kTrainingHeader[] =
    "step,loss,lr,toks_per_s,grad_norm,total_tokens,data_seconds,forward_seconds,backward_seconds,"
    "communication_seconds,optimizer_seconds,step_seconds,data_source,skipped_nonfinite,unix_"
    "seconds\n";
const char kValHeader[] = "step,val_loss,ppl,tokens,seconds,unix_seconds\n";
const char kFallbackHeader[] = "step,fallback,count\n";
const char kSelectionHeader[] = "step,layer,k_mean,k_max,rows,pct_at_max\n";
const char kAuditHeader[] =
    "step,layer,queries,selected_mass,selected_mass_p10,window_mass,window_overlap,choice_entropy,"
    "neighbour_agreement,free_choices,unix_seconds\n";
const char kSourcesHeader[] = "step,source,rows,loss,epoch,unix_seconds\n";
const char kValSetsHeader[] = "step,set,val_loss,ppl,bits_per_byte,tokens,unix_seconds\n";

namespace {

using Json = nlohmann::ordered_json;

double Mib(int64_t bytes) { return std::round(double(bytes) / (1 << 20) * 1000) / 1000; }
double Gib(int64_t bytes) { return std::round(double(bytes) / (1 << 30) * 1e6) / 1e6; }

// JSON has no NaN or infinity: they are written as text.
Json Number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

// A layer without a gate or a selection has no such keys.
Json LayerJson(const v1::LayerStats& layer) {
  Json json;
  json["layer"] = layer.layer();
  if (layer.has_gate()) {
    json.update({{"gate_entropy_mean", Number(layer.gate().entropy_mean())},
                 {"gate_entropy_min", Number(layer.gate().entropy_min())},
                 {"gate_max_mean", Number(layer.gate().max_gate_mean())},
                 {"gate_max", Number(layer.gate().max_gate_max())},
                 {"gate_collapse_frac", Number(layer.gate().collapse_ratio())},
                 {"gate_branch_shares", layer.gate().branch_share()},
                 {"gate_means", layer.gate().gate_mean()}});
  }
  if (layer.has_selection()) {
    json.update({{"sel_k_mean", Number(layer.selection().keys_mean())},
                 {"sel_k_max", layer.selection().keys_max()},
                 {"sel_rows", layer.selection().rows()},
                 {"sel_pct_at_max", Number(layer.selection().at_max_ratio())}});
  }
  json.update({{"keys_read", layer.keys_read()}, {"keys_expected", layer.keys_expected()}});
  return json;
}

// An empty field where there is no value.
std::string Field(bool present, double value) {
  return present ? absl::StrFormat("%.6g", value) : "";
}

void AddMemory(const v1::StepRecord& step, Json* line) {
  (*line)["mem_allocated_mib"] = Mib(step.memory_allocated_bytes());
  (*line)["mem_allocated_gib"] = Gib(step.memory_allocated_bytes());
  (*line)["mem_reserved_mib"] = Mib(step.memory_reserved_bytes());
  (*line)["mem_reserved_gib"] = Gib(step.memory_reserved_bytes());
}

void AddStep(const v1::StepRecord& step, bool logged, Json* line) {
  AddMemory(step, line);
  (*line)["loss"] = Number(step.loss());
  (*line)["toks_per_s"] = Number(step.tokens_per_second());
  if (!logged) return;
  (*line)["lr"] = step.learning_rate();
  (*line)["grad_norm"] = Number(step.grad_norm());
  (*line)["total_tokens"] = step.total_tokens();
  (*line)["dt_fetch_s"] = step.times().data_seconds();
  (*line)["step_seconds"] = step.times().step_seconds();
  (*line)["data_source"] = SourceName(step.data_source());
  (*line)["data_epoch"] = step.data_epoch();
  (*line)["skipped_nonfinite"] = step.skipped_nonfinite();
  (*line)["fallbacks"] = Json::object();
  for (const auto& [name, count] : step.fallbacks()) (*line)["fallbacks"][name] = count;
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
    (*line)["loss"] = Number(record.eval().loss());
    for (const v1::NamedLoss& set : record.eval().sets()) {
      (*line)["sets"][set.name()] = Number(set.loss());
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

std::string SourceName(v1::DataSource source) {
  if (source == v1::DATA_SOURCE_UNSPECIFIED) return "mix";
  constexpr char kPrefix[] = "DATA_SOURCE_";
  const std::string& name = v1::DataSource_Name(source);
  if (name.empty()) return absl::StrCat("unknown(", static_cast<int>(source), ")");
  return absl::AsciiStrToLower(name.substr(sizeof(kPrefix) - 1));
}

std::string TrainingRow(const v1::StepRecord& step, double unix_seconds) {
  const v1::StepTimes& times = step.times();
  return absl::StrFormat(
      "%d,%.9g,%.9g,%.1f,%.9g,%d,%.6f,%.6f,%.6f,%.6f,%.6f,%.6f,%s,%d,%.3f\n", step.step(),
      step.loss(), step.learning_rate(), step.tokens_per_second(), step.grad_norm(),
      step.total_tokens(), times.data_seconds(), times.forward_seconds(), times.backward_seconds(),
      times.communication_seconds(), times.optimizer_seconds(), times.step_seconds(),
      SourceName(step.data_source()), step.skipped_nonfinite(), unix_seconds);
}

std::string ValRow(const v1::EvalRecord& eval, double unix_seconds) {
  return absl::StrFormat("%d,%.9g,%.6g,%d,%.3f,%.3f\n", eval.step(), eval.loss(),
                         std::exp(eval.loss()), eval.tokens(), eval.seconds(), unix_seconds);
}

std::string FallbackRows(const v1::StepRecord& step) {
  std::vector<std::pair<std::string, int64_t>> counts(step.fallbacks().begin(),
                                                      step.fallbacks().end());
  std::sort(counts.begin(), counts.end());
  std::string rows;
  int64_t total = 0;
  for (const auto& [name, count] : counts) {
    rows += absl::StrFormat("%d,%s,%d\n", step.step(), name, count);
    total += count;
  }
  return rows + absl::StrFormat("%d,total,%d\n", step.step(), total);
}

std::string SelectionRows(const v1::StepRecord& step) {
  std::string rows;
  for (const v1::LayerStats& layer : step.layers()) {
    if (!layer.has_selection()) continue;
    const v1::SelectionStats& selection = layer.selection();
    rows += absl::StrFormat("%d,%d,%.6g,%d,%d,%.6g\n", step.step(), layer.layer(),
                            selection.keys_mean(), selection.keys_max(), selection.rows(),
                            selection.at_max_ratio());
  }
  return rows;
}

std::string AuditRows(const v1::StepRecord& step, double unix_seconds) {
  std::string rows;
  for (const v1::LayerStats& layer : step.layers()) {
    if (!layer.has_audit()) continue;
    const v1::AttentionAudit& audit = layer.audit();
    const v1::SelectionChoice& choice = audit.choice();
    rows += absl::StrFormat(
        "%d,%d,%d,%s,%s,%s,%s,%s,%s,%s,%.3f\n", step.step(), layer.layer(), audit.queries(),
        Field(audit.has_selected_mass(), audit.selected_mass()),
        Field(audit.has_selected_mass_p10(), audit.selected_mass_p10()),
        Field(audit.has_window_mass(), audit.window_mass()),
        Field(audit.has_choice() && audit.has_window_mass(), choice.window_overlap_ratio()),
        Field(audit.has_choice(), choice.entropy_ratio()),
        Field(audit.has_choice(), choice.neighbour_agreement_ratio()),
        audit.has_choice() ? absl::StrCat(choice.free_choices()) : "", unix_seconds);
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
    rows += absl::StrFormat(
        "%d,%s,%.9g,%.6g,%s,%d,%.3f\n", eval.step(), set.name(), set.loss(), std::exp(set.loss()),
        Field(tokens_are_bytes, set.loss() / std::numbers::ln2), set.tokens(), unix_seconds);
  }
  return rows;
}

Scalars ScalarsOf(const v1::StepRecord& step) {
  Scalars scalars = {{"train/loss", step.loss()},
                     {"train/lr", step.learning_rate()},
                     {"train/toks_per_s", step.tokens_per_second()},
                     {"train/grad_norm", step.grad_norm()},
                     {"train/step_seconds", step.times().step_seconds()},
                     {"memory/allocated_gib", Gib(step.memory_allocated_bytes())}};
  double gates = 0, selections = 0;  // layers that have them
  double entropy = 0, collapse = 0, keys = 0;
  std::array<double, kBranches> share = {};
  for (const v1::LayerStats& layer : step.layers()) {
    gates += layer.has_gate() ? 1 : 0;
    selections += layer.has_selection() ? 1 : 0;
    entropy += layer.gate().entropy_mean();
    collapse = std::max(collapse, layer.gate().collapse_ratio());
    keys += layer.selection().keys_mean();
    for (int i = 0; i < std::min(kBranches, layer.gate().branch_share_size()); ++i) {
      share[i] += layer.gate().branch_share(i);
    }
  }
  if (gates > 0) {
    scalars.insert(scalars.end(),
                   {{"gate/entropy_mean", entropy / gates}, {"gate/collapse_max", collapse}});
    for (int i = 0; i < kBranches; ++i) {
      scalars.emplace_back(absl::StrCat("gate/share_", kBranchNames[i]), share[i] / gates);
    }
  }
  if (selections > 0) scalars.push_back({"selection/keys_mean", keys / selections});
  for (const v1::SourceShare& source : step.sources()) {
    if (!source.has_loss()) continue;
    scalars.emplace_back(absl::StrCat("source/", source.name()), source.loss());
  }
  return scalars;
}

Scalars ScalarsOf(const v1::EvalRecord& eval) {
  Scalars scalars = {{"val/loss", eval.loss()}, {"val/ppl", std::exp(eval.loss())}};
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

std::string LogLine(const v1::WorkerRecord& record, int64_t steps) {
  if (record.has_step()) {
    const v1::StepRecord& step = record.step();
    return absl::StrFormat(
        "step %d/%d | loss %.4f | lr %.3e | %.0f tok/s | grad norm %.3f | %.1f ms%s%s", step.step(),
        steps, step.loss(), step.learning_rate(), step.tokens_per_second(), step.grad_norm(),
        step.times().step_seconds() * 1e3,
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
  if (record.has_event()) {
    return absl::StrCat(record.event().reason(), ": ", record.event().text());
  }
  if (record.has_started()) {
    return absl::StrFormat("%d parameters on %s%s%s", record.started().parameters(),
                           record.started().device(),
                           record.started().resumed_from().empty() ? "" : ", resumed from ",
                           record.started().resumed_from());
  }
  if (record.has_finished()) {
    return absl::StrFormat("%s after step %d%s%s", record.finished().reason(),
                           record.finished().step(), record.finished().text().empty() ? "" : ": ",
                           record.finished().text());
  }
  return "";
}

}  // namespace nsa::train
