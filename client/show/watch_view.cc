#include "client/show/watch_view.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/show/human.h"
#include "client/show/job_text.h"
#include "client/show/metrics_view.h"
#include "common/base/clean_text.h"
#include "common/estimate/run_time.h"
#include "common/estimate/state_title.h"

namespace nsa::client {
namespace {

constexpr int kWidestBar = 50;

constexpr char kBetween[] = "  ";

// Without the id where there is no room for it; the state is always there.
std::string HeadLine(const v1::Job& job, absl::Time now, const ViewOptions& options) {
  const std::string state = StateTitle(job);
  std::vector<std::string> parts = {Paint(StateColour(job), state, options.colours)};
  const double seconds = RunSeconds(job, now);
  if (seconds >= 0) parts.push_back(HumanDuration(seconds));
  parts.push_back(absl::StrCat("restarts ", job.restarts()));
  const std::string name = Paint(Colour::kBold, job.name(), options.colours);
  const std::string whole = absl::StrCat(name, " ", Paint(Colour::kDim, job.id(), options.colours),
                                         kBetween, absl::StrJoin(parts, kBetween));
  if (DisplayWidth(whole) <= options.columns) return whole;
  const int room = std::max(5, options.columns - DisplayWidth(state) - 2);
  parts.insert(parts.begin(), Paint(Colour::kBold, ClipMiddle(job.name(), room), options.colours));
  return JoinFitting(parts, kBetween, options.columns, options.unicode);
}

// True when the speed and the time left are meaningful.
bool IsMoving(const v1::Job& job, const ViewMoment& moment) {
  return job.state() == v1::Job::STATE_RUNNING && moment.connected;
}

std::string BarLine(const v1::Job& job, const ViewMoment& moment, const ViewOptions& options) {
  const v1::JobProgress& p = job.progress();
  const double eta = EtaNow(p, moment);
  const bool moving = IsMoving(job, moment);
  std::vector<std::string> numbers = {absl::StrFormat("%5.1f %%", 100 * ShareDone(p)), StepText(p)};
  if (moving) numbers.push_back(absl::StrCat("ends in ", HumanDuration(eta)));
  // The bar keeps its width while the numbers change theirs.
  const int bar = std::clamp(options.columns - 48, 8, kWidestBar);
  const std::string open = options.unicode ? "" : "[";
  const std::string close = options.unicode ? "" : "]";
  const std::string whole = absl::StrCat(
      open,
      Paint(StateColour(job), ProgressBar(ShareDone(p), bar, options.unicode), options.colours),
      close, " ", absl::StrJoin(numbers, kBetween));
  if (DisplayWidth(whole) <= options.columns) return whole;
  return JoinFitting(numbers, kBetween, options.columns, options.unicode);
}

// As many numbers as fit; the most important come first.
std::string NumbersLine(const v1::Job& job, bool moving, const ViewOptions& options) {
  const v1::JobProgress& p = job.progress();
  std::vector<std::string> parts = {absl::StrCat("loss ", HumanLoss(p.loss()))};
  if (p.val_step() != 0) {
    parts.push_back(absl::StrCat("val loss ", HumanLoss(p.val_loss()), " at ", p.val_step()));
  }
  if (moving) parts.push_back(absl::StrCat(HumanCount(p.tokens_per_second()), " tok/s"));
  parts.push_back(absl::StrCat(HumanCount(p.total_tokens()), " tokens"));
  for (const record::Quantity& quantity : record::kQuantities) {
    if (quantity.newest == nullptr) continue;
    parts.push_back(
        absl::StrCat(quantity.view.brief, " ", QuantityText(quantity, quantity.newest(p))));
  }
  return JoinFitting(parts, kBetween, options.columns, options.unicode);
}

std::string CheckpointText(const v1::JobProgress& p, absl::Time now) {
  if (p.checkpoint_unix_nanos() == 0) return "no checkpoint yet";
  return absl::StrCat("checkpoint ", p.checkpoint_step(), ", ",
                      HumanAge(now, p.checkpoint_unix_nanos()));
}

// Why the job waits, restarts or stops.
std::string NoteLine(const v1::Job& job, absl::Time now) {
  std::vector<std::string> parts;
  if (job.queue_position() > 0) {
    parts.push_back(absl::StrCat("position ", job.queue_position(), " in the queue"));
  }
  if (const std::string next = NextStartText(job, now); !next.empty()) {
    parts.push_back("next start " + next);
  }
  const bool calm = job.state() == v1::Job::STATE_RUNNING;
  if (!calm && !ReasonText(job).empty()) parts.push_back(CleanLine(ReasonText(job)));
  if (!HasEnded(job) && !StopText(job.stop()).empty()) {
    parts.push_back(StopText(job.stop()));
  }
  return absl::StrJoin(parts, "  ");
}

// What is wrong, and the first thing that helps. An older coordinator sends no problems.
void AddProblems(const v1::Job& job, const ViewOptions& options, std::vector<std::string>* lines) {
  const auto add = [&](Colour colour, const std::string& text) {
    lines->push_back(Paint(colour, text, options.colours));
  };
  for (const v1::Problem& problem : job.problems()) {
    add(ProblemColour(problem), ProblemText(problem));
    if (problem.muted() || problem.remedies().empty()) continue;
    const v1::Remedy& remedy = problem.remedies(0);
    add(Colour::kDim,
        JoinFitting({absl::StrCat("  ", remedy.command()), absl::StrCat("# ", remedy.text())},
                    kBetween, options.columns, options.unicode));
  }
  if (!job.problems().empty()) return;
  if (const std::string why = TelemetryText(job); !why.empty()) {
    add(Colour::kWarning, absl::StrCat("telemetry is not written, ", why));
  }
  if (const std::string& error = job.progress().checkpoint_error(); !error.empty()) {
    add(Colour::kWarning, absl::StrCat("the newest checkpoint failed: ", error));
  }
}

}  // namespace

double EtaNow(const v1::JobProgress& progress, const ViewMoment& moment) {
  if (progress.eta_seconds() < 0) return -1;
  const double passed = absl::ToDoubleSeconds(moment.now - moment.received);
  return std::max(0.0, progress.eta_seconds() - std::max(0.0, passed));
}

std::vector<std::string> LiveView(const v1::Job& job, const ViewMoment& moment,
                                  const ViewOptions& options) {
  // As many of a text's clauses as fit.
  const auto clauses = [&](const std::string& text) {
    return JoinFitting(absl::StrSplit(text, ", "), ", ", options.columns, options.unicode);
  };
  std::vector<std::string> lines = {HeadLine(job, moment.now, options),
                                    BarLine(job, moment, options)};
  const v1::JobProgress& p = job.progress();
  if (p.step() > 0) {
    lines.push_back(NumbersLine(job, IsMoving(job, moment), options));
    lines.push_back(CheckpointText(p, moment.now));
    if (const std::string gates = GatesText(p); !gates.empty()) {
      lines.push_back(clauses("gates " + gates));
    }
    if (const std::string text = ResourcesText(p); !text.empty()) lines.push_back(clauses(text));
    if (!job.health().words().empty() && job.problems().empty()) {
      lines.push_back(Paint(HealthColour(job.health()), job.health().words(), options.colours));
    }
  }
  AddProblems(job, options, &lines);
  if (const std::string note = NoteLine(job, moment.now); !note.empty()) lines.push_back(note);
  if (!moment.connected) {
    const std::string silence = HumanDuration(absl::ToDoubleSeconds(moment.silence));
    const std::string text =
        JoinFitting({absl::StrCat("coordinator not reached for ", silence, "; trying again"),
                     "(training goes on without it)"},
                    " ", options.columns, options.unicode);
    lines.push_back(Paint(Colour::kWarning, text, options.colours));
  }
  for (std::string& line : lines) line = Shorten(line, options.columns, options.unicode);
  return lines;
}

std::string PlainLine(const v1::Job& job, absl::Time now) {
  const v1::JobProgress& p = job.progress();
  std::string line =
      absl::StrCat(Timestamp(absl::ToUnixNanos(now)), " ", job.id(), " ", StateTitle(job), " step ",
                   p.step(), "/", p.total_steps(), absl::StrFormat(" %.1f%%", 100 * ShareDone(p)));
  if (p.step() > 0) {
    const bool moving = job.state() == v1::Job::STATE_RUNNING;
    absl::StrAppend(&line, " loss ", HumanLoss(p.loss()), " val_loss ", HumanLoss(p.val_loss()),
                    " tok/s ", moving ? absl::StrFormat("%.0f", p.tokens_per_second()) : "-");
    absl::StrAppend(
        &line, " ends in ", moving ? HumanDuration(p.eta_seconds()) : "-", " checkpoint ",
        p.checkpoint_unix_nanos() == 0
            ? "-"
            : absl::StrCat(p.checkpoint_step(), " age ", ShortAge(now, p.checkpoint_unix_nanos())),
        p.checkpoint_error().empty() ? "" : " (newest failed)");
  }
  absl::StrAppend(&line, " restarts ", job.restarts());
  if (!job.health().words().empty()) absl::StrAppend(&line, " health: ", job.health().words());
  if (const std::string why = TelemetryText(job); !why.empty()) {
    absl::StrAppend(&line, " telemetry not written, ", why);
  }
  if (job.state() != v1::Job::STATE_RUNNING && !ReasonText(job).empty()) {
    absl::StrAppend(&line, " reason ", CleanLine(ReasonText(job)));
  }
  return line;
}

std::string TransitionLine(const v1::Job& job, absl::Time now, const std::string& from,
                           const ViewOptions& options) {
  const std::string time = Timestamp(absl::ToUnixNanos(now));
  const std::string reason = CleanLine(ReasonText(job));
  const std::string title = StateTitle(job);
  return absl::StrCat(Paint(Colour::kDim, time, options.colours), " ",
                      from == title ? "" : from + (options.unicode ? " → " : " -> "),
                      Paint(StateColour(job), title, options.colours),
                      reason.empty() ? "" : "  " + reason);
}

std::string Summary(const v1::Job& job, const ViewOptions& options) {
  const v1::JobProgress& p = job.progress();
  const double seconds = RunSeconds(job, absl::FromUnixNanos(job.end_unix_nanos()));
  std::string text = absl::StrCat(
      Title(job), " ", Paint(StateColour(job), StateTitle(job), options.colours),
      seconds >= 0 ? absl::StrCat(" after ", HumanDuration(seconds)) : "", ": step ", StepText(p),
      p.step() > 0 ? ", loss " + HumanLoss(p.loss()) : "",
      p.val_step() != 0 ? ", val loss " + HumanLoss(p.val_loss()) : "",
      p.checkpoint_unix_nanos() != 0 ? absl::StrCat(", checkpoint ", p.checkpoint_step()) : "",
      "\n");
  const bool plain = job.state() == v1::Job::STATE_SUCCEEDED && job.reason() == "COMPLETED";
  if (!plain && !ReasonText(job).empty()) {
    absl::StrAppend(&text, ReasonText(job), "\n");
  }
  return absl::StrCat(text, "Next:\n", NextCommands(job));
}

bool IsTurn(const v1::Job& previous, const v1::Job& job) {
  return previous.state() != job.state() || previous.restarts() != job.restarts() ||
         previous.stop().mode() != job.stop().mode();
}

bool IsNews(const v1::Job& previous, const v1::Job& job) {
  return previous.progress().val_step() != job.progress().val_step() ||
         previous.progress().checkpoint_step() != job.progress().checkpoint_step() ||
         TelemetryText(previous) != TelemetryText(job);
}

}  // namespace nsa::client
