// How long ranks ran on GPUs, by hour, for quotas[].gpu_time. Pure.
//
// It is counted whenever the run time of a job is stored (time_limit.h), and belongs to the hours
// of the wall clock in which it passed.
#pragma once

#include <cstdint>
#include <map>

#include "absl/time/time.h"
#include "nsa/v1/store.pb.h"

namespace nsa::server {

// Milliseconds, of all ranks together, by hour since 1970.
using GpuHours = std::map<int64_t, int64_t>;

// No quota has a longer window.
inline constexpr absl::Duration kLongestGpuWindow = absl::Hours(24 * 62);

// `ranks` ranks ran for `each` until `until`. What is older than any window is left out.
GpuHours GpuHoursUntil(absl::Time until, absl::Duration each, int64_t ranks);

// What the change of a stored job from `before` to `after` adds.
GpuHours GpuHoursAdded(const v1::StoredJob& before, const v1::StoredJob& after, absl::Time now);

// What the ranks that run now have used since the run time was last stored.
GpuHours GpuHoursOfPresent(const v1::StoredJob& job, absl::Time now);

// The first hour that a window at `now` reaches.
int64_t OldestGpuHour(absl::Time now);

void AddHours(const GpuHours& more, GpuHours* sum);

// Their sum in the last `window`. An hour counts as a whole until all of it is out of the window.
absl::Duration GpuTimeIn(const GpuHours& hours, absl::Duration window, absl::Time now);

// When that sum will be below `limit` if nothing is added: `now` if it is, InfiniteFuture with a
// limit of zero.
absl::Time WhenBelow(absl::Duration limit, const GpuHours& hours, absl::Duration window,
                     absl::Time now);

}  // namespace nsa::server
