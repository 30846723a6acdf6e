#include "server/decide/health.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/reason.h"
#include "common/estimate/run_time.h"
#include "common/estimate/state_title.h"

namespace nsa::server {
namespace {

constexpr double kMinute = 60;
constexpr double kHour = 3'600;
constexpr double kDay = 86'400;
constexpr double kNanos = 1e9;

std::string Percent(const v1::JobProgress& progress) {
  if (progress.total_steps() <= 0) return "";
  const double share =
      static_cast<double>(progress.step()) / static_cast<double>(progress.total_steps());
  return absl::StrFormat(", %d %%", static_cast<int>(std::floor(100 * std::min(share, 1.0))));
}

// What is wrong with a rank; empty if nothing is.
std::string Complaint(const v1::RankStatus& rank, int ranks) {
  const std::string who = ranks > 1 ? absl::StrCat("rank ", rank.rank(), ": ") : "";
  if (!rank.note().empty()) {
    const std::string where = rank.phase().empty() ? "" : absl::StrCat(" in ", rank.phase());
    return absl::StrCat(who, rank.note(), where);
  }
  if (rank.state() == "UNKNOWN") return absl::StrCat(who, "its machine does not report");
  if (!rank.telemetry_error().empty()) return absl::StrCat(who, rank.telemetry_error());
  return "";
}

// `between` stands between the parts of the sentence.
Health Made(HealthLevel level, std::string state, std::string why, const char* between = ": ") {
  Health health{.level = level, .state = std::move(state), .why = std::move(why), .words = ""};
  health.words =
      health.why.empty() ? health.state : absl::StrCat(health.state, between, health.why);
  return health;
}

Health Running(const v1::Job& job) {
  const v1::JobProgress& progress = job.progress();
  for (const v1::RankStatus& rank : job.ranks()) {
    std::string wrong = Complaint(rank, job.ranks_size());
    if (wrong.empty()) continue;
    return Made(HealthLevel::kWarning, absl::StrCat("training", Percent(progress)),
                std::move(wrong), "; ");
  }
  std::string state = absl::StrCat("training", Percent(progress));
  if (progress.step() == 0) state = "training, before its first step";
  if (progress.eta_seconds() >= 0) {
    absl::StrAppend(&state, ", ends in ", Span(progress.eta_seconds()));
  }
  if (job.stop().mode() == v1::STOP_MODE_AT_STEP) {
    absl::StrAppend(&state, ", stops after step ", job.stop().at_step());
  }
  // What its records say about the run.
  const v1::JobHealth& health = job.health();
  if (health.level() == v1::JobHealth::LEVEL_BAD) {
    return Made(HealthLevel::kBad, std::move(state), health.words(), "; ");
  }
  if (progress.step() > 0 && !std::isfinite(progress.loss())) {
    return Made(HealthLevel::kBad, std::move(state), "its loss is not finite", "; ");
  }
  if (!progress.checkpoint_error().empty()) {
    return Made(HealthLevel::kWarning, std::move(state),
                absl::StrCat("the last checkpoint failed: ", progress.checkpoint_error()), "; ");
  }
  if (health.level() == v1::JobHealth::LEVEL_WARNING) {
    return Made(HealthLevel::kWarning, std::move(state), health.words(), "; ");
  }
  if (health.problems().empty()) {
    Health healthy = Made(HealthLevel::kGood, std::move(state), "");
    healthy.words += "; healthy";
    return healthy;
  }
  return Made(HealthLevel::kGood, std::move(state), health.words(), "; ");
}

std::string Because(const v1::Job& job) {
  return job.message().empty() ? job.reason() : job.message();
}

std::string AtStep(const v1::JobProgress& progress) {
  return absl::StrCat("step ", progress.step(), " of ", progress.total_steps());
}

std::string NextTry(const v1::Job& job, int64_t now) {
  if (job.next_start_unix_nanos() <= now) return "";
  return absl::StrCat("; next start in ",
                      Span(static_cast<double>(job.next_start_unix_nanos() - now) / kNanos));
}

Health Queued(const v1::Job& job, int64_t now) {
  std::string state = absl::StrCat(
      "waiting",
      job.queue_position() > 0 ? absl::StrCat(" at position ", job.queue_position()) : "");
  const std::string next = NextTry(job, now);
  if (job.message().empty()) absl::StrAppend(&state, next);
  const bool in_vain = ReasonFromWord(job.reason()) == Reason::kDependencyNeverSatisfied;
  return Made(in_vain ? HealthLevel::kWarning : HealthLevel::kWaiting, std::move(state),
              job.message().empty() ? "" : absl::StrCat(job.message(), next));
}

// Of a job that ended early. The words do not name the step twice.
Health EndedAtStep(HealthLevel level, const std::string& how, const v1::Job& job,
                   const std::string& why) {
  Health health = Made(level, absl::StrCat(how, " at ", AtStep(job.progress())), why);
  if (NamesStep(why, job.progress().step())) health.words = absl::StrCat(how, ": ", why);
  return health;
}

// A run that has diverged has not done well, although it did all its steps.
Health Succeeded(const v1::Job& job) {
  const double seconds = RunSeconds(job, absl::FromUnixNanos(job.end_unix_nanos()));
  std::string state = absl::StrCat("finished all ", job.progress().total_steps(), " steps",
                                   seconds >= 0 ? absl::StrCat(" in ", Span(seconds)) : "");
  std::string wrong = job.health().words();
  if (wrong.empty() && ReasonFromWord(job.reason()) == Reason::kDiverged) {
    wrong = "the run has diverged";
  }
  const HealthLevel level = wrong.empty() ? HealthLevel::kGood : HealthLevel::kWarning;
  return Made(level, std::move(state), std::move(wrong), ", but ");
}

Health Stopped(const v1::Job& job) {
  if (WaitsForSweep(job)) {
    return Made(
        HealthLevel::kWaiting,
        absl::StrCat("waits at step ", job.stop().at_step(), " for the other jobs of its sweep"),
        "");
  }
  if (WasDropped(job)) {
    return EndedAtStep(HealthLevel::kWaiting, "dropped", job, job.message());
  }
  return Made(HealthLevel::kWaiting, absl::StrCat("stopped at ", AtStep(job.progress())), "");
}

}  // namespace

std::string HealthWord(HealthLevel level) {
  switch (level) {
    case HealthLevel::kGood:
      return "good";
    case HealthLevel::kWaiting:
      return "waiting";
    case HealthLevel::kWarning:
      return "warning";
    case HealthLevel::kBad:
      return "bad";
  }
  return "";
}

Health HealthOf(const v1::Job& job, int64_t now_unix_nanos) {
  const v1::JobProgress& progress = job.progress();
  switch (job.state()) {
    case v1::Job::STATE_QUEUED:
      return Queued(job, now_unix_nanos);
    case v1::Job::STATE_PREFLIGHT:
      return Made(HealthLevel::kWaiting, "being checked against its machine", "");
    case v1::Job::STATE_STARTING:
      return Made(HealthLevel::kWaiting, "starting its ranks", "");
    case v1::Job::STATE_RUNNING:
      return Running(job);
    case v1::Job::STATE_RESTARTING:
      if (ReasonFromWord(job.reason()) == Reason::kMoving) {
        return Made(HealthLevel::kWaiting, "moving to other machines", Because(job));
      }
      if (ReasonFromWord(job.reason()) == Reason::kGivingWay) {
        return Made(HealthLevel::kWaiting, "ending with a checkpoint", Because(job));
      }
      return Made(HealthLevel::kWarning, "restarting",
                  absl::StrCat(Because(job), NextTry(job, now_unix_nanos)));
    case v1::Job::STATE_STOPPING:
      return Made(HealthLevel::kWaiting, absl::StrCat("stopping at ", AtStep(progress)), "");
    case v1::Job::STATE_SUCCEEDED:
      return Succeeded(job);
    case v1::Job::STATE_FAILED:
      return EndedAtStep(HealthLevel::kBad, "failed", job, Because(job));
    case v1::Job::STATE_STOPPED:
      return Stopped(job);
    default:
      return Made(HealthLevel::kWaiting, "in a state that this version does not know", "");
  }
}

std::string Span(double seconds) {
  // Rounded first, so that no part of it reaches its limit.
  const double whole = std::round(std::max(seconds, 0.0));
  if (whole < kMinute) return absl::StrFormat("%.0f s", whole);
  const double minutes = std::round(whole / kMinute);
  if (minutes < kMinute) return absl::StrFormat("%.0f min", minutes);
  if (minutes < 24 * kMinute) {
    return absl::StrFormat("%.0f h %.0f min", std::floor(minutes / kMinute),
                           std::fmod(minutes, kMinute));
  }
  const double hours = std::round(whole / kHour);
  return absl::StrFormat("%.0f d %.0f h", std::floor(hours * kHour / kDay), std::fmod(hours, 24));
}

}  // namespace nsa::server
