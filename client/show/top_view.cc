#include "client/show/top_view.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/show/human.h"
#include "client/show/job_query.h"
#include "client/show/job_text.h"
#include "client/show/table.h"
#include "common/base/count.h"
#include "common/estimate/health.h"
#include "common/estimate/state_title.h"

namespace nsa::client {
namespace {

// The first line of the reason why it waits, or of its progress.
std::string Words(const v1::Job& job, absl::Time now) {
  if (!job.problems().empty() && !HasEnded(job)) return ProblemText(job.problems(0));
  if (job.state() == v1::Job::STATE_RUNNING) return job.health().words();
  std::string words = ReasonText(job);
  if (job.queue_position() > 0) {
    words = absl::StrCat("position ", job.queue_position(), ", ", words);
  }
  const std::string next = NextStartText(job, now);
  if (!next.empty()) words = absl::StrCat("next start ", next, ", ", words);
  return words.substr(0, words.find('\n'));
}

// What the state and the words say is seen in every terminal; the others are left out of a narrow
// one, the id first.
Table JobTable(const std::vector<const v1::Job*>& jobs, absl::Time now) {
  constexpr int kShortName = 16;
  constexpr int kShortWords = 20;
  Table table({{.title = "ID", .leave_out = 8},
               {.title = "NAME", .shorten_to = kShortName, .keep_ends = true},
               {.title = "STATE"},
               {.title = "STEP", .right = true, .leave_out = 5},
               {.title = "DONE", .right = true, .leave_out = 1},
               {.title = "LOSS", .right = true, .leave_out = 3},
               {.title = "VAL LOSS", .right = true, .leave_out = 6},
               {.title = "MEMORY", .right = true, .leave_out = 7},
               {.title = "TOK/S", .right = true, .leave_out = 4},
               {.title = "ENDS IN", .right = true, .leave_out = 2},
               {.title = "WORDS", .shorten_to = kShortWords}});
  for (const v1::Job* const each : jobs) {
    const v1::Job& job = *each;
    const v1::JobProgress& p = job.progress();
    const bool running = job.state() == v1::Job::STATE_RUNNING;
    const bool wrong = !job.problems().empty() && !HasEnded(job);
    const int64_t memory = p.memory_allocated_bytes();
    table.Add({job.id(),
               job.name(),
               {StateTitle(job), StateColour(job)},
               StepText(p),
               p.total_steps() == 0 ? "-" : absl::StrFormat("%.0f%%", 100 * ShareDone(p)),
               HumanLoss(p.loss()),
               HumanLoss(p.val_loss()),
               memory == 0 ? "-" : HumanBytes(memory),
               running ? HumanCount(p.tokens_per_second()) : "-",
               running ? HumanDuration(p.eta_seconds()) : "-",
               {Words(job, now), wrong     ? ProblemColour(job.problems(0))
                                 : running ? HealthColour(job.health())
                                           : Colour::kDim}});
  }
  return table;
}

std::vector<std::string> Lines(Table table, int width, const TopSize& size) {
  table.Fit(width, size.unicode);
  return absl::StrSplit(table.Format(size.colours), '\n', absl::SkipEmpty());
}

// The title row, and of the jobs as many as there is room for, the selected one among them.
std::vector<std::string> JobLines(const std::vector<const v1::Job*>& jobs, const TopChoice& choice,
                                  absl::Time now, const TopSize& size, int room) {
  const int mark = choice.selected.empty() ? 0 : 2;
  std::vector<std::string> rows = Lines(JobTable(jobs, now), size.columns - mark, size);
  const auto selected = std::ranges::find(jobs, choice.selected, &v1::Job::id) - jobs.begin();
  if (!choice.selected.empty()) {
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].insert(0, std::cmp_equal(i, selected + 1) ? "> " : "  ");
    }
  }
  if (std::ssize(rows) <= room) return rows;
  const int shown = room - 2;  // beside the titles and the line about the others
  const auto last = std::max<std::ptrdiff_t>(shown, std::min(selected + 1, std::ssize(jobs)));
  const auto first = choice.selected.empty() ? 0 : last - shown;
  std::vector<std::string> lines = {rows[0]};
  lines.insert(lines.end(), rows.begin() + 1 + first, rows.begin() + 1 + first + shown);
  lines.push_back(absl::StrCat("... ", std::ssize(jobs) - shown, " more; `nsactl list` shows all"));
  return lines;
}

std::string Used(int64_t all, int64_t free) {
  return absl::StrCat(HumanBytes(all - free), " of ", HumanBytes(all));
}

// One row for each GPU, and one for a machine without any.
std::vector<std::string> NodeLines(const std::vector<v1::Node>& nodes, const TopSize& size) {
  constexpr int kShortName = 12;
  constexpr int kShortDevice = 12;
  Table table({{.title = "MACHINE", .shorten_to = kShortName, .keep_ends = true},
               {.title = "STATE"},
               {.title = "DEVICE", .shorten_to = kShortDevice},
               {.title = "USED", .right = true, .leave_out = 2},
               {.title = "MEMORY", .right = true, .leave_out = 1},
               {.title = "BUSY", .right = true},
               {.title = "POWER", .right = true, .leave_out = 3},
               {.title = "TEMPERATURE", .right = true, .leave_out = 4}});
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
  if (table.empty()) return {"no machines"};
  return Lines(std::move(table), size.columns, size);
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
  for (std::string& part : parts) part = Paint(Colour::kBold, part, size.colours);
  // First, because a narrow terminal has no room for all.
  if (!state.connected) {
    parts.insert(parts.begin(),
                 Paint(Colour::kWarning, "coordinator not reached; trying again", size.colours));
  }
  return JoinFitting(parts, "  ", size.columns, size.unicode);
}

// What needs somebody first, then what trains, then what waits; those that have ended last.
int Rank(const v1::Job& job, absl::Time now) {
  if (NeedsYou(job, now)) return -1;
  if (HasEnded(job)) return 3;
  if (job.state() == v1::Job::STATE_RUNNING) return 0;
  return job.state() == v1::Job::STATE_QUEUED ? 2 : 1;
}

double OrLast(bool known, double value) {
  return known && std::isfinite(value) ? value : std::numeric_limits<double>::infinity();
}

// What the jobs are ordered by, the least first.
double KeyOf(const v1::Job& job, std::string_view order, absl::Time now) {
  const v1::JobProgress& p = job.progress();
  const bool running = job.state() == v1::Job::STATE_RUNNING;
  if (order == "progress") return -ShareDone(p);
  if (order == "loss") return OrLast(p.step() > 0, p.loss());
  if (order == "validation") return OrLast(p.val_step() > 0, p.val_loss());
  if (order == "speed") return OrLast(running, -p.tokens_per_second());
  if (order == "time left") return OrLast(running && p.eta_seconds() >= 0, p.eta_seconds());
  return Rank(job, now);
}

}  // namespace

std::vector<const v1::Job*> JobsShown(const TopState& state, const TopChoice& choice,
                                      absl::Time now) {
  const JobQuery query(choice.filter);
  std::vector<const v1::Job*> jobs;
  for (const auto* const all : {&state.active, &state.ended}) {
    for (const v1::Job& job : *all) {
      if (query.Holds(job, now)) jobs.push_back(&job);
    }
  }
  const std::string_view order = kTopOrders.at(choice.order);
  std::ranges::stable_sort(jobs, {}, [&](const v1::Job* job) { return Rank(*job, now); });
  if (order == "name") {
    std::ranges::stable_sort(jobs, {}, &v1::Job::name);
  } else {
    std::ranges::stable_sort(jobs, {}, [&](const v1::Job* job) { return KeyOf(*job, order, now); });
  }
  if (choice.reversed) std::ranges::reverse(jobs);
  return jobs;
}

std::vector<std::string> TopView(const TopState& state, const TopChoice& choice, absl::Time now,
                                 const TopSize& size) {
  const std::vector<const v1::Job*> jobs = JobsShown(state, choice, now);
  const std::vector<std::string> nodes = NodeLines(state.nodes, size);
  std::vector<std::string> lines = {SumLine(state, now, size), ""};
  // Beside the sum, two blank lines, the choice's line and that on which the cursor stands.
  const int own = choice.last_line.empty() ? 0 : 1;
  const int room = std::max(3, size.rows - static_cast<int>(nodes.size()) - 4 - own);
  const std::vector<std::string> rows =
      !jobs.empty()           ? JobLines(jobs, choice, now, size, room)
      : choice.filter.empty() ? std::vector<std::string>{"no jobs"}
                              : std::vector<std::string>{"no jobs match: " + choice.filter};
  lines.insert(lines.end(), rows.begin(), rows.end());
  lines.emplace_back();
  lines.insert(lines.end(), nodes.begin(), nodes.end());
  const size_t most = std::max(1, size.rows - 1 - own);
  if (lines.size() > most) lines.resize(most);
  if (own > 0) lines.push_back(choice.last_line);
  for (std::string& line : lines) line = Shorten(line, size.columns, size.unicode);
  return lines;
}

}  // namespace nsa::client
