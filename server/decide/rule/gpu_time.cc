#include "server/decide/rule/gpu_time.h"

#include <algorithm>

#include "server/decide/rule/time_limit.h"

namespace nsa::server {
namespace {

constexpr absl::Duration kOneHour = absl::Hours(1);

int64_t HourOf(absl::Time time) {
  return absl::ToInt64Hours(absl::Floor(time - absl::UnixEpoch(), kOneHour));
}

absl::Time EndOf(int64_t hour) { return absl::UnixEpoch() + kOneHour * (hour + 1); }

int64_t RanksOnGpus(const v1::StoredJob& job) {
  return std::ranges::count_if(job.placements(), [](const v1::RankPlacement& place) {
    return !place.cuda_device().empty();
  });
}

}  // namespace

GpuHours GpuHoursUntil(absl::Time until, absl::Duration each, int64_t ranks) {
  GpuHours hours;
  if (ranks <= 0) return hours;
  // At most so many hours, also when a clock that was set makes the time absurd.
  absl::Time from = until - std::min(each, kLongestGpuWindow + kOneHour);
  while (from < until) {
    const int64_t hour = HourOf(from);
    const absl::Time end = std::min(EndOf(hour), until);
    hours[hour] += ranks * absl::ToInt64Milliseconds(end - from);
    from = end;
  }
  return hours;
}

GpuHours GpuHoursAdded(const v1::StoredJob& before, const v1::StoredJob& after, absl::Time now) {
  const double seconds = after.earlier_run_seconds() + after.run_seconds() -
                         before.earlier_run_seconds() - before.run_seconds();
  return GpuHoursUntil(now, absl::Seconds(seconds), RanksOnGpus(before));
}

GpuHours GpuHoursOfPresent(const v1::StoredJob& job, absl::Time now) {
  const double seconds = RunSeconds(job, now) - job.run_seconds();
  return GpuHoursUntil(now, absl::Seconds(seconds), RanksOnGpus(job));
}

int64_t OldestGpuHour(absl::Time now) { return HourOf(now - kLongestGpuWindow); }

void AddHours(const GpuHours& more, GpuHours* sum) {
  for (const auto& [hour, milliseconds] : more) (*sum)[hour] += milliseconds;
}

absl::Duration GpuTimeIn(const GpuHours& hours, absl::Duration window, absl::Time now) {
  int64_t sum = 0;
  for (auto one = hours.lower_bound(HourOf(now - window)); one != hours.end(); ++one) {
    sum += one->second;
  }
  return absl::Milliseconds(sum);
}

absl::Time WhenBelow(absl::Duration limit, const GpuHours& hours, absl::Duration window,
                     absl::Time now) {
  if (limit <= absl::ZeroDuration()) return absl::InfiniteFuture();
  absl::Duration used = GpuTimeIn(hours, window, now);
  absl::Time when = now;
  for (auto one = hours.lower_bound(HourOf(now - window)); used >= limit; ++one) {
    used -= absl::Milliseconds(one->second);
    when = EndOf(one->first) + window;
  }
  return when;
}

}  // namespace nsa::server
