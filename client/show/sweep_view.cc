#include "client/show/sweep_view.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/show/human.h"
#include "client/show/job_text.h"
#include "common/base/count.h"
#include "common/estimate/state_title.h"

namespace nsa::client {
namespace {

bool IsOut(const v1::Job& job) { return WasDropped(job) || job.state() == v1::Job::STATE_FAILED; }

bool IsValidated(const v1::Job& job) { return job.progress().val_step() > 0; }

double LossOf(const v1::Job& job) {
  const double loss = job.progress().val_loss();
  return IsValidated(job) && std::isfinite(loss) ? loss : std::numeric_limits<double>::infinity();
}

auto SweepRank(const v1::Job& job) {
  const bool halved = !job.spec().sweep().halve_at().empty();
  return std::tuple(IsOut(job), halved ? -job.progress().val_step() : 0, LossOf(job),
                    job.spec().sweep().index());
}

// The labels that differ between the jobs, without that of the sweep itself.
std::vector<std::string> SweptFields(const std::vector<v1::Job>& jobs) {
  std::map<std::string, std::set<std::string>> values;
  for (const v1::Job& job : jobs) {
    for (const auto& [key, value] : job.spec().labels()) values[key].insert(value);
  }
  std::vector<std::string> fields;
  for (const auto& [key, each] : values) {
    if (key != "sweep" && (each.size() > 1 || key.find('.') != std::string::npos)) {
      fields.push_back(key);
    }
  }
  return fields;
}

std::string LabelOf(const v1::Job& job, const std::string& key) {
  const auto found = job.spec().labels().find(key);
  return found == job.spec().labels().end() ? "-" : found->second;
}

std::string NoteOf(const v1::Job& job) {
  if (WaitsForSweep(job)) {
    return absl::StrCat("waits at step ", job.stop().at_step(), " for the other jobs");
  }
  if (job.state() == v1::Job::STATE_STOPPED) return job.message();
  return job.state() == v1::Job::STATE_FAILED ? ReasonText(job) : StopText(job.stop());
}

}  // namespace

void SortSweep(std::vector<v1::Job>* jobs) {
  std::ranges::sort(*jobs,
                    [](const v1::Job& a, const v1::Job& b) { return SweepRank(a) < SweepRank(b); });
}

Table SweepTable(const std::vector<v1::Job>& jobs) {
  const std::vector<std::string> fields = SweptFields(jobs);
  std::vector<Table::Column> columns = {{"ID"}, {"NAME"}};
  for (const std::string& field : fields) columns.push_back({field});
  columns.insert(columns.end(), {{"STATE"}, {"STEP", true}, {"LOSS", true}, {"VAL LOSS", true}});
  columns.push_back({"NOTE"});
  Table table(columns);
  for (const v1::Job& job : jobs) {
    std::vector<Table::Cell> row = {job.id(), job.name()};
    for (const std::string& field : fields) row.emplace_back(LabelOf(job, field));
    row.emplace_back(StateTitle(job), StateColour(job));
    row.emplace_back(StepText(job.progress()));
    row.emplace_back(HumanLoss(job.progress().loss()));
    row.emplace_back(IsValidated(job) ? HumanLoss(job.progress().val_loss()) : "-",
                     &job == jobs.data() && IsValidated(job) ? Colour::kGood : Colour::kNone);
    row.emplace_back(NoteOf(job));
    table.Add(std::move(row));
  }
  return table;
}

std::string SweepSummary(const std::vector<v1::Job>& jobs) {
  const v1::Job& best = jobs.front();
  if (!std::isfinite(LossOf(best))) {
    return absl::StrCat(Count(static_cast<int64_t>(jobs.size()), "job"), ", none validated yet");
  }
  std::vector<std::string> values;
  for (const std::string& field : SweptFields(jobs)) {
    values.push_back(absl::StrCat(field, "=", LabelOf(best, field)));
  }
  return absl::StrFormat("best: %s (%s): validation loss %.4f at step %d", best.name(),
                         absl::StrJoin(values, ", "), LossOf(best), best.progress().val_step());
}

}  // namespace nsa::client
