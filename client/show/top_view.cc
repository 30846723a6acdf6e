#include "client/show/top_view.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/show/human.h"
#include "client/show/job_text.h"
#include "client/show/table.h"
#include "common/base/count.h"
#include "common/estimate/health.h"

namespace nsa::client {
namespace {

// Narrower terminals have fewer columns, so that the words are seen.
constexpr int kWideColumns = 125;

// The first line of the reason why it waits, or of its progress.
std::string Words(const v1::Job& job, absl::Time now) {
  if (!job.problems().empty() && !HasEnded(job)) return ProblemText(job.problems(0));
  if (job.state() == v1::Job::STATE_RUNNING) return job.health().words();
  std::string words = ReasonText(job);
  if (job.queue_position() > 0) words = absl::StrCat("place ", job.queue_position(), ", ", words);
  const std::string next = NextStartText(job, now);
  if (!next.empty()) words = absl::StrCat("next start ", next, ", ", words);
  return words.substr(0, words.find('\n'));
}

std::vector<std::string> Lines(const Table& table, const TopSize& size) {
  std::vector<std::string> lines =
      absl::StrSplit(table.Format(size.colours), '\n', absl::SkipEmpty());
  for (std::string& line : lines) line = Clip(line, size.columns);
  return lines;
}

std::vector<std::string> JobLines(const std::vector<v1::Job>& jobs, absl::Time now,
                                  const TopSize& size) {
  const bool wide = size.columns >= kWideColumns;
  std::vector<Table::Column> columns = {{"ID"},         {"NAME"},       {"STATE"},
                                        {"STEP", true}, {"DONE", true}, {"LOSS", true}};
  if (wide) columns.insert(columns.end(), {{"VAL LOSS", true}, {"MEMORY", true}});
  columns.insert(columns.end(), {{"TOK/S", true}, {"ETA", true}, {"WORDS"}});
  Table table(columns);
  for (const v1::Job& job : jobs) {
    const v1::JobProgress& p = job.progress();
    const bool running = job.state() == v1::Job::STATE_RUNNING;
    std::vector<Table::Cell> row = {
        job.id(),
        job.name(),
        {StateName(job.state()), StateColour(job)},
        StepText(p),
        p.total_steps() == 0 ? "-" : absl::StrFormat("%.0f%%", 100 * ShareDone(p)),
        HumanLoss(p.loss())};
    if (wide) {
      row.emplace_back(HumanLoss(p.val_loss()));
      row.emplace_back(p.memory_allocated_bytes() == 0 ? "-"
                                                       : HumanBytes(p.memory_allocated_bytes()));
    }
    row.emplace_back(running ? HumanCount(p.tokens_per_second()) : "-");
    row.emplace_back(running ? HumanDuration(p.eta_seconds()) : "-");
    const bool wrong = !job.problems().empty() && !HasEnded(job);
    row.emplace_back(Words(job, now), wrong     ? ProblemColour(job.problems(0))
                                      : running ? HealthColour(job.health())
                                                : Colour::kDim);
    table.Add(std::move(row));
  }
  return Lines(table, size);
}

std::string Used(int64_t all, int64_t free) {
  return absl::StrCat(HumanBytes(all - free), " of ", HumanBytes(all));
}

// One row for each GPU, and one for a machine without any.
std::vector<std::string> NodeLines(const std::vector<v1::Node>& nodes, const TopSize& size) {
  Table table({{"MACHINE"},
               {"STATE"},
               {"DEVICE"},
               {"USED", true},
               {"MEMORY", true},
               {"BUSY", true},
               {"POWER", true},
               {"TEMPERATURE", true}});
  for (const v1::Node& node : nodes) {
    const v1::NodeInfo& info = node.info();
    const Colour colour = node.state() == "READY"  ? Colour::kGood
                          : node.state() == "LOST" ? Colour::kBad
                                                   : Colour::kWarning;
    if (info.gpus().empty()) {
      table.Add({info.name(),
                 {node.state(), colour},
                 absl::StrCat("CPU, ", Count(info.cores(), "core")),
                 absl::StrCat(node.cpu_slots_used(), "/", info.cpu_slots(), " slots"),
                 Used(info.memory_bytes(), info.free_memory_bytes()),
                 "-",
                 "-",
                 "-"});
    }
    for (int i = 0; i < info.gpus_size(); ++i) {
      const v1::GpuInfo& gpu = info.gpus(i);
      const auto or_dash = [](bool has, const std::string& text) { return has ? text : "-"; };
      table.Add({i == 0 ? info.name() : "",
                 {i == 0 ? node.state() : "", colour},
                 absl::StrCat("GPU ", i, ", ", gpu.name()),
                 i == 0 ? absl::StrCat(node.gpus_used(), "/", info.gpus_size(), " GPUs") : "",
                 Used(gpu.memory_bytes(), gpu.free_bytes()),
                 or_dash(gpu.has_utilization_ratio(),
                         absl::StrFormat("%.0f%%", 100 * gpu.utilization_ratio())),
                 or_dash(gpu.has_power_watts(), absl::StrFormat("%.0f W", gpu.power_watts())),
                 or_dash(gpu.has_temperature_celsius(),
                         absl::StrFormat("%.0f °C", gpu.temperature_celsius()))});
    }
  }
  return table.empty() ? std::vector<std::string>{"no machines"} : Lines(table, size);
}

std::string SumLine(const TopState& state, absl::Time now, const TopSize& size) {
  int training = 0;
  int waiting = 0;
  double speed = 0;
  for (const v1::Job& job : state.active) {
    if (job.state() == v1::Job::STATE_RUNNING) {
      ++training;
      speed += job.progress().tokens_per_second();
    } else if (job.state() == v1::Job::STATE_QUEUED) {
      ++waiting;
    }
  }
  int need = 0;
  for (const auto* const jobs : {&state.active, &state.ended}) {
    for (const v1::Job& job : *jobs) need += NeedsYou(job, now) ? 1 : 0;
  }
  const int other = static_cast<int>(state.active.size()) - training - waiting;
  std::vector<std::string> parts = {absl::StrCat(training, " training"),
                                    absl::StrCat(waiting, " waiting")};
  if (need > 0)
    parts.insert(parts.begin(), need == 1 ? "1 needs you" : absl::StrCat(need, " need you"));
  if (other > 0) parts.push_back(absl::StrCat(other, " starting or stopping"));
  if (training > 0) parts.push_back(absl::StrCat(HumanCount(speed), " tok/s"));
  parts.push_back(Timestamp(absl::ToUnixNanos(now)));
  std::string line = Paint(Colour::kBold, absl::StrJoin(parts, "  "), size.colours);
  if (!state.connected) {
    absl::StrAppend(&line, "  ",
                    Paint(Colour::kWarning, "coordinator not reached; trying again", size.colours));
  }
  return Clip(line, size.columns);
}

// What needs somebody first, then what trains; those that wait last.
int Rank(const v1::Job& job) {
  if (WorstProblem(job) != nullptr) return -1;
  if (job.state() == v1::Job::STATE_RUNNING) return 0;
  return job.state() == v1::Job::STATE_QUEUED ? 2 : 1;
}

}  // namespace

std::vector<std::string> TopView(const TopState& state, absl::Time now, const TopSize& size) {
  std::vector<v1::Job> jobs = state.active;
  std::ranges::stable_sort(jobs, {}, Rank);
  jobs.insert(jobs.end(), state.ended.begin(), state.ended.end());
  const std::vector<std::string> nodes = NodeLines(state.nodes, size);
  std::vector<std::string> lines = {SumLine(state, now, size), ""};
  std::vector<std::string> rows =
      jobs.empty() ? std::vector<std::string>{"no jobs"} : JobLines(jobs, now, size);
  // The sum, two blank lines and the last line, on which the cursor stands.
  const int room = std::max(3, size.rows - static_cast<int>(nodes.size()) - 4);
  if (static_cast<int>(rows.size()) > room) {
    const size_t hidden = rows.size() - room + 1;
    rows.resize(room - 1);
    rows.push_back(absl::StrCat("... ", hidden, " more; nsactl list shows all"));
  }
  lines.insert(lines.end(), rows.begin(), rows.end());
  lines.emplace_back();
  lines.insert(lines.end(), nodes.begin(), nodes.end());
  const size_t most = std::max(1, size.rows - 1);
  if (lines.size() > most) lines.resize(most);
  for (std::string& line : lines) line = Clip(line, size.columns);
  return lines;
}

}  // namespace nsa::client
