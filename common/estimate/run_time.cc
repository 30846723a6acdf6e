#include "common/estimate/run_time.h"

#include <algorithm>

namespace nsa {

double RunSeconds(const v1::Job& job, absl::Time now) {
  if (job.start_unix_nanos() == 0) return -1;
  const absl::Time end =
      job.end_unix_nanos() != 0 ? absl::FromUnixNanos(job.end_unix_nanos()) : now;
  return absl::ToDoubleSeconds(end - absl::FromUnixNanos(job.start_unix_nanos()));
}

double Goodput(const v1::Job& job, absl::Time now) {
  const double seconds = RunSeconds(job, now);
  if (job.start_unix_nanos() == 0) return -1;
  // The two times come from the clocks of two machines, so the ratio may exceed 1.
  return seconds > 0 ? std::clamp(job.progress().productive_seconds() / seconds, 0.0, 1.0) : 0;
}

}  // namespace nsa
