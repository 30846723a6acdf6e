#include "common/estimate/run_time.h"

#include <algorithm>

namespace nsa {

double RunSeconds(const v1::Job& job, absl::Time now) {
  if (job.start_unix_nanos() == 0) return -1;
  if (job.running_since_unix_nanos() != 0) {
    const absl::Duration present = now - absl::FromUnixNanos(job.running_since_unix_nanos());
    return job.run_seconds() + std::max(absl::ToDoubleSeconds(present), 0.0);
  }
  if (job.run_seconds() > 0) return job.run_seconds();
  const absl::Time end =
      job.end_unix_nanos() != 0 ? absl::FromUnixNanos(job.end_unix_nanos()) : now;
  return absl::ToDoubleSeconds(end - absl::FromUnixNanos(job.start_unix_nanos()));
}

double Goodput(const v1::Job& job, absl::Time now) {
  return job.start_unix_nanos() == 0 ? -1 : Goodput(job.progress(), RunSeconds(job, now));
}

double Goodput(const v1::JobProgress& progress, double run_seconds) {
  // The two times come from the clocks of two machines, so the ratio may exceed 1.
  return run_seconds > 0 ? std::clamp(progress.productive_seconds() / run_seconds, 0.0, 1.0) : 0;
}

}  // namespace nsa
