#include "client/show/metrics_view.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/show/human.h"
#include "common/base/clean_text.h"
#include "common/estimate/state_title.h"

namespace nsa::client {
namespace {

using record::Of;
using record::Quantity;
using record::View;

// The least columns of a number of a step, and of a layer, which has more of them.
constexpr int kNumberRoom = 8;
constexpr int kLayerRoom = 5;

bool IsColumn(const Quantity& quantity, Of of, bool wide) {
  return quantity.of() == of && quantity.view.brief != nullptr && (wide || !quantity.view.wide);
}

Table::Column ColumnOf(const Quantity& quantity) {
  const std::string head = absl::AsciiStrToUpper(quantity.view.brief);
  const int room = quantity.of() == Of::kLayer          ? kLayerRoom
                   : quantity.view.kind == View::kBytes ? kNumberRoom + 2
                                                        : kNumberRoom;
  const bool word = quantity.view.kind == View::kWord;
  if (quantity.view.kind == View::kSeconds) return {absl::StrCat(head, " MS"), true, kNumberRoom};
  return {head, !word, std::max(room, static_cast<int>(head.size()))};
}

// The time of a part of a step is a column of milliseconds.
std::string CellText(const Quantity& quantity, double value) {
  if (quantity.view.kind == View::kSeconds) return absl::StrFormat("%.1f", 1e3 * value);
  return QuantityText(quantity, value);
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

std::string QuantityText(const Quantity& quantity, double value) {
  switch (quantity.view.kind) {
    case View::kRate:
      return absl::StrFormat("%.*e", quantity.view.digits, value);
    case View::kCount:
      return HumanCount(value);
    case View::kPercent:
      return absl::StrFormat("%.*f%%", quantity.view.digits, 100 * value);
    case View::kSeconds:
      return HumanDuration(value);
    case View::kBytes:
      return HumanBytes(static_cast<int64_t>(value));
    default:
      return absl::StrFormat("%.*f", quantity.view.digits, value);
  }
}

Table StepTable(bool wide) {
  std::vector<Table::Column> columns = {{"STEP", true, kNumberRoom}, {"RANK", true, 4}};
  for (const Quantity& quantity : record::kQuantities) {
    if (IsColumn(quantity, Of::kStep, wide)) columns.push_back(ColumnOf(quantity));
  }
  if (wide) columns.push_back({"FALLBACKS", true, 9});
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
  std::vector<Table::Cell> row = {absl::StrCat(step.step()), absl::StrCat(record.rank())};
  for (const Quantity& quantity : record::kQuantities) {
    if (!IsColumn(quantity, Of::kStep, wide)) continue;
    row.emplace_back(quantity.word != nullptr ? quantity.word(step)
                                              : CellText(quantity, quantity.step(step)));
  }
  if (wide) {
    int64_t fallbacks = 0;
    for (const auto& [name, count] : step.fallbacks()) fallbacks += count;
    row.emplace_back(absl::StrCat(fallbacks));
  }
  if (step.skipped_nonfinite()) {
    row.emplace_back("skipped: not finite", Colour::kBad);
  } else {
    row.emplace_back(wide ? SourcesText(step) : "");
  }
  table->Add(std::move(row));
}

Table LayerTable() {
  std::vector<Table::Column> columns = {{"LAYER", true, 7}};
  for (const Quantity& quantity : record::kQuantities) {
    if (IsColumn(quantity, Of::kLayer, true)) columns.push_back(ColumnOf(quantity));
  }
  columns.push_back({"KEYS READ", false, 9});
  return Table(columns);
}

void AddLayerRows(const v1::StepRecord& step, Table* table) {
  for (const v1::LayerStats& layer : step.layers()) {
    std::vector<Table::Cell> row = {absl::StrCat(layer.layer())};
    for (const Quantity& quantity : record::kQuantities) {
      if (!IsColumn(quantity, Of::kLayer, true)) continue;
      const record::Value value = ValueOf(quantity, layer);
      row.emplace_back(value.has_value() ? CellText(quantity, *value) : "-");
    }
    row.emplace_back(Reads(layer));
    table->Add(std::move(row));
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
      return absl::StrFormat("rank %d ended: %s", response.rank(), EndText(record.finished()));
    default:
      return "";
  }
}

}  // namespace nsa::client
