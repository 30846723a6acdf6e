#include "server/decide/rule/time_limit.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/count.h"
#include "server/decide/lifecycle.h"

namespace nsa::server {
namespace {

bool RanksExist(const v1::StoredJob& job) {
  return HasGang(job.job().state()) && !job.restart_decided();
}

// "24 h", "3 h 12 min", "40 min", "30 s".
std::string HoursAndMinutes(double seconds) {
  if (seconds < 60) return absl::StrFormat("%g s", seconds);
  const auto minutes = static_cast<int64_t>(seconds / 60);
  if (minutes < 60) return absl::StrCat(minutes, " min");
  if (minutes % 60 == 0) return absl::StrCat(minutes / 60, " h");
  return absl::StrCat(minutes / 60, " h ", minutes % 60, " min");
}

}  // namespace

double RunSeconds(const v1::StoredJob& job, absl::Time now) {
  if (!RanksExist(job)) return job.run_seconds();
  const absl::Duration present = now - absl::FromUnixNanos(job.state_unix_nanos());
  return job.run_seconds() + std::max(absl::ToDoubleSeconds(present), 0.0);
}

double TotalRunSeconds(const v1::StoredJob& job, absl::Time now) {
  return job.earlier_run_seconds() + RunSeconds(job, now);
}

void ShowRunTime(const v1::StoredJob& stored, v1::Job* job) {
  job->set_run_seconds(stored.earlier_run_seconds() + stored.run_seconds());
  if (RanksExist(stored)) job->set_running_since_unix_nanos(stored.state_unix_nanos());
}

bool TimeIsUp(const v1::StoredJob& job, absl::Time now) {
  const double hours = job.job().spec().limits().hours();
  return hours > 0 && RunSeconds(job, now) >= hours * 3600;
}

std::string TimeLeftText(const v1::StoredJob& job, absl::Time now) {
  const double limit = job.job().spec().limits().hours() * 3600;
  if (limit <= 0) return "";
  const double left = std::max(limit - RunSeconds(job, now), 0.0);
  // In steps, so that somebody who watches the job is not sent a change every second.
  const double shown = left < 60 ? std::floor(left / 10) * 10 : left;
  return absl::StrCat(HoursAndMinutes(shown), " of ", HoursAndMinutes(limit),
                      " left (limits.hours)");
}

std::string TimeIsUpText(const v1::Job& job) {
  return absl::StrFormat(
      "its ranks have run for limits.hours: %s; to give it as many hours again: nsactl resume %s",
      Number(job.spec().limits().hours()), job.id());
}

}  // namespace nsa::server
