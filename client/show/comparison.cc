#include "client/show/comparison.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "client/show/human.h"
#include "client/show/job_text.h"
#include "common/base/clean_text.h"
#include "common/estimate/run_time.h"
#include "common/estimate/state_title.h"
#include "common/job/flat_keys.h"
#include "common/record/json_number.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

std::string LossText(std::optional<double> loss) {
  return loss.has_value() ? HumanLoss(*loss) : "-";
}

std::string OrDash(double value, const std::string& text) {
  return std::isfinite(value) ? text : "-";
}

Json LossJson(std::optional<double> loss) {
  return loss.has_value() ? record::JsonNumber(*loss) : Json(nullptr);
}

// The place of the only best of the values that are finite and positive; none when there are less
// than two of those, or several are as good.
std::optional<size_t> BestOf(const std::vector<double>& values, bool least) {
  std::optional<size_t> best;
  int known = 0;
  bool single = true;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i]) || values[i] <= 0) continue;
    ++known;
    if (best.has_value() && values[i] == values[*best]) single = false;
    if (best.has_value() && (least ? values[i] >= values[*best] : values[i] <= values[*best])) {
      continue;
    }
    best = i;
    single = true;
  }
  return known > 1 && single ? best : std::nullopt;
}

std::map<std::string, std::optional<double>> ValSetsOf(const v1::Job& job) {
  std::map<std::string, std::optional<double>> sets;
  for (const auto& [name, files] : job.spec().data().val()) sets[name];
  for (const v1::NamedLoss& set : job.progress().val_sets()) sets[set.name()] = set.loss();
  return sets;
}

std::optional<double> ValSetLoss(const Figures& figures, const std::string& name) {
  const auto found = figures.val_sets.find(name);
  return found == figures.val_sets.end() ? std::nullopt : found->second;
}

// The validation sets of all jobs, and which job has the lowest loss of each.
using ValSetWinners = std::map<std::string, std::optional<size_t>>;

std::vector<Table::Column> FigureColumns(const ValSetWinners& val_sets) {
  std::vector<Table::Column> columns = {{"JOB"},
                                        {"STATE"},
                                        {"STEPS", true},
                                        {"TOKENS", true},
                                        {"MEAN LOSS", true},
                                        {"VAL LOSS", true},
                                        {"BEST VAL", true},
                                        {"AT STEP", true}};
  for (const auto& [name, winner] : val_sets) {
    columns.push_back({CleanLine("VAL " + name), true});
  }
  for (const char* const title : {"TOK/S", "MEMORY", "RUN TIME", "RESTARTS"}) {
    columns.push_back({title, true});
  }
  return columns;
}

}  // namespace

std::vector<std::string> ShortNames(const std::vector<ComparedJob>& jobs) {
  std::map<std::string, int> count;
  for (const ComparedJob& each : jobs) ++count[each.job.name()];
  std::vector<std::string> names;
  for (const ComparedJob& each : jobs) {
    const bool twice = count[each.job.name()] > 1;
    names.push_back(CleanLine(twice ? Title(each.job) : each.job.name()));
  }
  return names;
}

bool KeyValues::Differs() const {
  return std::ranges::any_of(values, [&](const std::string& value) { return value != values[0]; });
}

std::vector<KeyValues> SpecKeys(const std::vector<ComparedJob>& jobs) {
  std::map<std::string, KeyValues> keys;
  for (size_t i = 0; i < jobs.size(); ++i) {
    for (const FlatKey& flat : FlatKeys(jobs[i].job.spec(), UnsetKeys::kShown)) {
      KeyValues& row = keys[flat.key];
      row.key = flat.key;
      row.values.resize(jobs.size(), "-");
      row.values[i] = flat.Text();
    }
  }
  std::vector<KeyValues> rows;
  for (auto& [key, row] : keys) rows.push_back(std::move(row));
  return rows;
}

Figures FiguresOf(const ComparedJob& compared, absl::Time now) {
  const v1::Job& job = compared.job;
  const JobCurves& curves = compared.curves;
  const double seconds = RunSeconds(job, now);
  Figures figures{
      .state = StateName(job.state()),
      .step = job.progress().step(),
      .tokens = job.progress().total_tokens(),
      .best_val_loss = kNone,
      .val_sets = ValSetsOf(job),
      .tokens_per_second = curves.MedianSpeed(),
      .memory_bytes = std::max(curves.PeakMemory(), job.progress().memory_allocated_bytes()),
      .hours = seconds < 0 ? -1 : seconds / 3600,
      .restarts = job.restarts()};
  if (const auto recent = curves.RecentLoss(); recent.has_value()) figures.loss = recent->loss;
  if (const auto newest = curves.Newest(); newest.has_value()) figures.val_loss = newest->loss;
  if (const auto best = curves.Best(); best.has_value()) {
    figures.best_val_loss = best->loss;
    figures.best_val_step = best->step;
  }
  return figures;
}

Table FiguresTable(const std::vector<ComparedJob>& jobs, absl::Time now) {
  std::vector<Figures> all;
  ValSetWinners val_sets;
  for (const ComparedJob& job : jobs) {
    all.push_back(FiguresOf(job, now));
    for (const auto& [name, loss] : all.back().val_sets) val_sets[name];
  }
  const auto best = [&all](auto figure, bool least) {
    std::vector<double> values;
    for (const Figures& each : all) {
      values.push_back(std::optional<double>(std::invoke(figure, each)).value_or(kNone));
    }
    return BestOf(values, least);
  };
  const auto loss = best(&Figures::loss, true);
  const auto val_loss = best(&Figures::val_loss, true);
  const auto best_val = best(&Figures::best_val_loss, true);
  const auto speed = best(&Figures::tokens_per_second, false);
  for (auto& [name, winner] : val_sets) {
    winner = best([&set = name](const Figures& f) { return ValSetLoss(f, set); }, true);
  }
  const std::vector<std::string> names = ShortNames(jobs);
  Table table(FigureColumns(val_sets));
  for (size_t i = 0; i < jobs.size(); ++i) {
    const Figures& f = all[i];
    const auto cell = [i](const std::string& text, const std::optional<size_t>& winner) {
      return Table::Cell(text, winner == i ? Colour::kGood : Colour::kNone);
    };
    std::vector<Table::Cell> row = {
        names[i],
        {StateTitle(jobs[i].job), StateColour(jobs[i].job)},
        WithCommas(f.step),
        HumanCount(static_cast<double>(f.tokens)),
        cell(LossText(f.loss), loss),
        cell(LossText(f.val_loss), val_loss),
        cell(OrDash(f.best_val_loss, HumanLoss(f.best_val_loss)), best_val),
        std::isfinite(f.best_val_loss) ? WithCommas(f.best_val_step) : "-"};
    for (const auto& [name, winner] : val_sets) {
      row.push_back(cell(LossText(ValSetLoss(f, name)), winner));
    }
    row.push_back(cell(OrDash(f.tokens_per_second, HumanCount(f.tokens_per_second)), speed));
    row.emplace_back(f.memory_bytes == 0 ? "-" : HumanBytes(f.memory_bytes));
    row.emplace_back(f.hours < 0 ? "-" : HumanDuration(f.hours * 3600));
    row.emplace_back(absl::StrCat(f.restarts));
    table.Add(std::move(row));
  }
  return table;
}

Table KeysTable(const std::vector<ComparedJob>& jobs, const std::vector<KeyValues>& keys,
                int width) {
  std::vector<Table::Column> columns = {{"KEY"}};
  for (const std::string& name : ShortNames(jobs)) columns.push_back({ClipMiddle(name, width)});
  Table table(columns);
  for (const KeyValues& row : keys) {
    std::vector<Table::Cell> cells = {row.key};
    for (const std::string& value : row.values) {
      const std::string text = value.empty() ? "\"\"" : CleanLine(value);
      cells.emplace_back(DisplayWidth(text) > width ? Clip(text, width - 3) + "..." : text);
    }
    table.Add(std::move(cells));
  }
  return table;
}

nlohmann::ordered_json ComparisonDocument(const std::vector<ComparedJob>& jobs,
                                          const std::vector<KeyValues>& keys, absl::Time now) {
  Json list = Json::array();
  for (const ComparedJob& each : jobs) {
    const Figures f = FiguresOf(each, now);
    Json val_sets = Json::object();
    for (const auto& [name, loss] : f.val_sets) val_sets[name] = LossJson(loss);
    list.push_back({{"id", each.job.id()},
                    {"name", each.job.name()},
                    {"state", f.state},
                    {"step", f.step},
                    {"total_tokens", f.tokens},
                    {"loss", LossJson(f.loss)},
                    {"val_loss", LossJson(f.val_loss)},
                    {"best_val_loss", record::JsonOrNull(f.best_val_loss)},
                    {"best_val_step", f.best_val_step},
                    {"val_sets", std::move(val_sets)},
                    {"tokens_per_second", record::JsonOrNull(f.tokens_per_second)},
                    {"memory_bytes", f.memory_bytes},
                    {"hours", f.hours < 0 ? Json(nullptr) : Json(f.hours)},
                    {"restarts", f.restarts}});
  }
  Json configuration = Json::array();
  for (const KeyValues& row : keys) {
    configuration.push_back({{"key", row.key}, {"values", row.values}});
  }
  return {{"jobs", std::move(list)}, {"configuration", std::move(configuration)}};
}

}  // namespace nsa::client
