#include "client/show/metrics_view.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/show/human.h"
#include "common/base/clean_text.h"

namespace nsa::client {
namespace {

std::string Milliseconds(double seconds) { return absl::StrFormat("%.1f", seconds * 1e3); }

std::string Share(const v1::GateStats& gate, int branch) {
  if (branch >= gate.branch_share_size()) return "-";
  return absl::StrFormat("%.3f", gate.branch_share(branch));
}

// "1.25M" when the kernels read what the formula says, else "1.25M (formula 1.30M)".
std::string Reads(const v1::LayerStats& layer) {
  const auto& read = layer.keys_read();
  const auto& expected = layer.keys_expected();
  const auto sum = [](const auto& list) {
    return static_cast<double>(std::accumulate(list.begin(), list.end(), int64_t{0}));
  };
  const bool equal = std::equal(read.begin(), read.end(), expected.begin(), expected.end());
  return absl::StrCat(HumanCount(sum(read)),
                      equal ? "" : absl::StrCat(" (formula ", HumanCount(sum(expected)), ")"));
}

}  // namespace

Table StepTable(bool wide) {
  std::vector<Table::Column> columns = {
      {"STEP", true, 8},      {"RANK", true, 4},    {"LOSS", true, 8},    {"LR", true, 8},
      {"GRAD NORM", true, 9}, {"TOK/S", true, 8},   {"STEP MS", true, 8}, {"DATA MS", true, 7},
      {"COMM MS", true, 7},   {"MEMORY", false, 10}};
  if (wide) {
    columns.insert(columns.end(), {{"FWD MS", true, 8},
                                   {"BWD MS", true, 8},
                                   {"OPT MS", true, 7},
                                   {"TOKENS", true, 8},
                                   {"SOURCE", false, 9},
                                   {"EPOCH", true, 5},
                                   {"FALLBACKS", true, 9}});
  }
  columns.push_back({"NOTE"});
  return Table(columns);
}

// "books 3.211 (6 rows), code 2.095 (2 rows)", or "" without data.mix.
std::string SourcesText(const v1::StepRecord& step) {
  std::string text;
  for (const v1::SourceShare& source : step.sources()) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", source.name(), " ",
                    source.has_loss() ? HumanLoss(source.loss()) : "-", " (", source.rows(),
                    source.rows() == 1 ? " row)" : " rows)");
  }
  return text;
}

void AddStepRow(const v1::WatchRecordsResponse& record, bool wide, Table* table) {
  const v1::StepRecord& step = record.record().step();
  const v1::StepTimes& times = step.times();
  std::vector<Table::Cell> row = {absl::StrCat(step.step()),
                                  absl::StrCat(record.rank()),
                                  HumanLoss(step.loss()),
                                  absl::StrFormat("%.2e", step.learning_rate()),
                                  absl::StrFormat("%.3f", step.grad_norm()),
                                  HumanCount(step.tokens_per_second()),
                                  Milliseconds(times.step_seconds()),
                                  Milliseconds(times.data_seconds()),
                                  Milliseconds(times.communication_seconds()),
                                  HumanBytes(step.memory_allocated_bytes())};
  if (wide) {
    int64_t fallbacks = 0;
    for (const auto& [name, count] : step.fallbacks()) fallbacks += count;
    const std::string name = v1::DataSource_Name(step.data_source());
    const std::string source =
        step.sources_size() > 0 ? "MIX"
        : name.empty() ? absl::StrCat("unknown(", static_cast<int>(step.data_source()), ")")
                       : name.substr(std::string("DATA_SOURCE_").size());
    for (const std::string& text :
         {Milliseconds(times.forward_seconds()), Milliseconds(times.backward_seconds()),
          Milliseconds(times.optimizer_seconds()), HumanCount(step.total_tokens()), source,
          absl::StrCat(step.data_epoch()), absl::StrCat(fallbacks)}) {
      row.emplace_back(text);
    }
  }
  if (step.skipped_nonfinite()) {
    row.emplace_back("skipped: not finite", Colour::kBad);
  } else {
    row.emplace_back(wide ? SourcesText(step) : "");
  }
  table->Add(std::move(row));
}

Table LayerTable() {
  return Table({{"LAYER", true, 7},
                {"ENTROPY", true, 7},
                {"MIN", true, 6},
                {"MAX GATE", true, 8},
                {"COLLAPSED", true, 9},
                {"CMP", true, 5},
                {"SEL", true, 5},
                {"WIN", true, 5},
                {"KEYS MEAN", true, 9},
                {"KEYS MAX", true, 8},
                {"AT MAX", true, 6},
                {"KEYS READ", false, 9}});
}

void AddLayerRows(const v1::StepRecord& step, Table* table) {
  for (const v1::LayerStats& layer : step.layers()) {
    const v1::GateStats& gate = layer.gate();
    const v1::SelectionStats& selection = layer.selection();
    const bool gated = layer.has_gate();
    const bool selects = layer.has_selection();
    table->Add(
        {absl::StrCat(layer.layer()), gated ? absl::StrFormat("%.4f", gate.entropy_mean()) : "-",
         gated ? absl::StrFormat("%.3f", gate.entropy_min()) : "-",
         gated ? absl::StrFormat("%.4f", gate.max_gate_mean()) : "-",
         gated ? absl::StrFormat("%.2f%%", 100 * gate.collapse_ratio()) : "-", Share(gate, 0),
         Share(gate, 1), Share(gate, 2),
         selects ? absl::StrFormat("%.1f", selection.keys_mean()) : "-",
         selects ? absl::StrCat(selection.keys_max()) : "-",
         selects ? absl::StrFormat("%.0f%%", 100 * selection.at_max_ratio()) : "-", Reads(layer)});
  }
}

// "; code 1.234, prose 1.1", or "" without data.val.
std::string SetsText(const v1::EvalRecord& eval) {
  std::string text;
  for (const v1::NamedLoss& set : eval.sets()) {
    absl::StrAppend(&text, text.empty() ? "; " : ", ", set.name(), " ", HumanLoss(set.loss()));
  }
  return text;
}

std::string RecordLine(const v1::WatchRecordsResponse& response) {
  const v1::WorkerRecord& record = response.record();
  switch (record.kind_case()) {
    case v1::WorkerRecord::kEval:
      return absl::StrFormat("step %d: validation loss %s (%s tokens, %.1f s)%s",
                             record.eval().step(), HumanLoss(record.eval().loss()),
                             WithCommas(record.eval().tokens()), record.eval().seconds(),
                             SetsText(record.eval()));
    case v1::WorkerRecord::kSample:
      return absl::StrFormat("step %d: sample of \"%s\": %s", record.sample().step(),
                             CleanLine(record.sample().prompt()),
                             CleanLine(record.sample().error().empty() ? record.sample().text()
                                                                       : record.sample().error()));
    case v1::WorkerRecord::kCheckpoint: {
      const v1::CheckpointRecord& c = record.checkpoint();
      if (!c.error().empty())
        return absl::StrFormat("step %d: checkpoint failed: %s", c.step(), c.error());
      return absl::StrFormat(
          "step %d: checkpoint %s (%s, written in %.1f s, training paused for %.0f ms)", c.step(),
          c.path(), HumanBytes(c.bytes()), c.write_seconds(), c.stall_seconds() * 1e3);
    }
    case v1::WorkerRecord::kUpload: {
      const v1::UploadRecord& u = record.upload();
      if (!u.error().empty()) {
        return absl::StrFormat("step %d: upload failed: %s", u.step(), u.error());
      }
      return absl::StrFormat("step %d: uploaded to %s (%s in %.1f s)", u.step(), u.url(),
                             HumanBytes(u.bytes()), u.seconds());
    }
    case v1::WorkerRecord::kStarted:
      return absl::StrFormat("rank %d: start %d on %s, %s parameters, after step %d",
                             response.rank(), response.generation(), record.started().device(),
                             WithCommas(record.started().parameters()),
                             record.started().resumed_step());
    case v1::WorkerRecord::kEvent:
      return absl::StrFormat("rank %d: %s: %s", response.rank(), record.event().reason(),
                             record.event().text());
    case v1::WorkerRecord::kFinished:
      return absl::StrFormat("rank %d: ended after step %d: %s %s", response.rank(),
                             record.finished().step(), record.finished().reason(),
                             record.finished().text());
    default:
      return "";
  }
}

}  // namespace nsa::client
