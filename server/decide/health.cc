#include "server/decide/health.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/reason.h"
#include "common/estimate/run_time.h"

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

Health Running(const v1::Job& job) {
  const v1::JobProgress& progress = job.progress();
  for (const v1::RankStatus& rank : job.ranks()) {
    const std::string wrong = Complaint(rank, job.ranks_size());
    if (wrong.empty()) continue;
    return {HealthLevel::kWarning, absl::StrCat("training", Percent(progress), "; ", wrong)};
  }
  std::string words = absl::StrCat("training", Percent(progress));
  if (progress.step() == 0) words = "training, before its first step";
  if (progress.eta_seconds() >= 0) {
    absl::StrAppend(&words, ", ends in ", Span(progress.eta_seconds()));
  }
  if (job.stop().mode() == v1::STOP_MODE_AT_STEP) {
    absl::StrAppend(&words, ", stops after step ", job.stop().at_step());
  }
  if (!progress.checkpoint_error().empty()) {
    return {HealthLevel::kWarning,
            absl::StrCat(words, "; the last checkpoint failed: ", progress.checkpoint_error())};
  }
  if (progress.step() > 0 && !std::isfinite(progress.loss())) {
    return {HealthLevel::kWarning, absl::StrCat(words, "; its loss is not finite")};
  }
  // What its records say about the run.
  const v1::JobHealth& health = job.health();
  if (health.level() == v1::JobHealth::LEVEL_WARNING) {
    return {HealthLevel::kWarning, absl::StrCat(words, "; ", health.words())};
  }
  if (health.level() == v1::JobHealth::LEVEL_BAD) {
    return {HealthLevel::kBad, absl::StrCat(words, "; ", health.words())};
  }
  return {HealthLevel::kGood, absl::StrCat(words, "; healthy")};
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
  const std::string place =
      job.queue_position() > 0 ? absl::StrCat(" at position ", job.queue_position()) : "";
  return {HealthLevel::kWaiting, absl::StrCat("waiting", place, job.message().empty() ? "" : ": ",
                                              job.message(), NextTry(job, now))};
}

Health Succeeded(const v1::Job& job) {
  const double seconds = RunSeconds(job, absl::FromUnixNanos(job.end_unix_nanos()));
  const bool known = seconds >= 0;
  return {HealthLevel::kGood, absl::StrCat("finished all ", job.progress().total_steps(), " steps",
                                           known ? absl::StrCat(" in ", Span(seconds)) : "")};
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
      return {HealthLevel::kWaiting, "being checked against its machine"};
    case v1::Job::STATE_STARTING:
      return {HealthLevel::kWaiting, "starting its ranks"};
    case v1::Job::STATE_RUNNING:
      return Running(job);
    case v1::Job::STATE_RESTARTING:
      if (ReasonFromWord(job.reason()) == Reason::kMoving) {
        return {HealthLevel::kWaiting, absl::StrCat("moving to other machines: ", Because(job))};
      }
      if (ReasonFromWord(job.reason()) == Reason::kGivingWay) {
        return {HealthLevel::kWaiting, absl::StrCat("ending with a checkpoint: ", Because(job))};
      }
      return {HealthLevel::kWarning,
              absl::StrCat("restarting: ", Because(job), NextTry(job, now_unix_nanos))};
    case v1::Job::STATE_STOPPING:
      return {HealthLevel::kWaiting, absl::StrCat("stopping at ", AtStep(progress))};
    case v1::Job::STATE_SUCCEEDED:
      return Succeeded(job);
    case v1::Job::STATE_FAILED:
      return {HealthLevel::kBad, absl::StrCat("failed at ", AtStep(progress), ": ", Because(job))};
    case v1::Job::STATE_STOPPED:
      return {HealthLevel::kWaiting, absl::StrCat("stopped at ", AtStep(progress))};
    default:
      return {HealthLevel::kWaiting, "in a state that this version does not know"};
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
