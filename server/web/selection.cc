#include "server/web/selection.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clean_text.h"
#include "common/base/status.h"
#include "common/estimate/health.h"
#include "server/decide/health.h"
#include "server/decide/lifecycle.h"

namespace nsa::server {
namespace {

constexpr char kLook[] = "look";
// How long a job that has failed needs a look.
constexpr absl::Duration kFresh = absl::Hours(24);

bool HasLabel(const v1::Job& job, const std::string& wanted) {
  return std::ranges::any_of(job.spec().labels(), [&](const auto& label) {
    return absl::StrContains(absl::StrCat(label.first, "=", label.second), wanted);
  });
}

// The order of the list.
enum class Place { kBad, kFailed, kWarning, kTraining, kWaiting, kEnded };

bool NeedsLook(Place place) { return place <= Place::kWarning; }

Place PlaceOfEnded(const v1::Job& job, absl::Time now) {
  if (absl::FromUnixNanos(job.end_unix_nanos()) < now - kFresh) return Place::kEnded;
  if (job.state() == v1::Job::STATE_FAILED) return Place::kFailed;
  const bool well = job.state() != v1::Job::STATE_SUCCEEDED ||
                    nsa::HealthOf(job).level() < v1::JobHealth::LEVEL_WARNING;
  return well ? Place::kEnded : Place::kWarning;
}

Place PlaceOf(const Web::Parts& parts, const v1::StoredJob& stored, absl::Time now) {
  const v1::Job& job = stored.job();
  if (IsTerminal(job.state())) return PlaceOfEnded(job, now);
  if (job.state() == v1::Job::STATE_QUEUED) return Place::kWaiting;
  switch (HealthOf(parts.control.View(stored), absl::ToUnixNanos(now)).level) {
    case HealthLevel::kBad:
      return Place::kBad;
    case HealthLevel::kWarning:
      return Place::kWarning;
    default:
      return Place::kTraining;
  }
}

bool HasState(const v1::Job& job, const std::string& wanted) {
  if (wanted.empty() || absl::EqualsIgnoreCase(wanted, kLook)) return true;
  if (absl::EqualsIgnoreCase(wanted, "active")) return !IsTerminal(job.state());
  if (absl::EqualsIgnoreCase(wanted, "ended")) return IsTerminal(job.state());
  return absl::EqualsIgnoreCase(wanted, StateName(job.state()));
}

bool IsNamed(const v1::Job& job, const std::string& wanted, const std::string& lower) {
  return wanted.empty() || absl::StrContains(absl::AsciiStrToLower(job.name()), lower) ||
         absl::StrContains(job.id(), wanted);
}

struct Placed {
  Place place;
  JobPtr job;
};

// In the order of the list.
std::vector<Placed> InOrder(const Web::Parts& parts, JobStore::Jobs jobs) {
  const absl::Time now = parts.clock.Wall();
  std::vector<Placed> all;
  all.reserve(jobs.active.size() + jobs.ended.size());
  std::ranges::reverse(jobs.active);
  for (JobPtr& job : jobs.active) {
    const Place place = PlaceOf(parts, *job, now);
    all.push_back({place, std::move(job)});
  }
  for (size_t i = 0; i < jobs.ended.size(); ++i) {
    const Place place = i < kMostRows ? PlaceOf(parts, *jobs.ended[i], now) : Place::kEnded;
    all.push_back({place, std::move(jobs.ended[i])});
  }
  std::ranges::stable_sort(all, {}, &Placed::place);
  return all;
}

}  // namespace

absl::StatusOr<int64_t> NumberIn(const HttpRequest& request, const std::string& name,
                                 int64_t otherwise, int64_t most) {
  const std::string text = request.Query(name);
  if (text.empty()) return otherwise;
  int64_t number = 0;
  if (!absl::SimpleAtoi(text, &number) || number < 0 || number > most) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", CutText(text, 40), " (0 to ", most, "); choose a number in it"));
  }
  return number;
}

absl::StatusOr<Selection> Selection::Of(const HttpRequest& request) {
  NSA_ASSIGN_OR_RETURN(const int64_t rows, NumberIn(request, "rows", kRows, kMostRows));
  return Selection{.state = request.Query("state"),
                   .name = request.Query("name"),
                   .label = request.Query("label"),
                   .rows = static_cast<size_t>(rows)};
}

Selected Select(const Web::Parts& parts, const Selection& wanted, size_t offset) {
  const bool look = absl::EqualsIgnoreCase(wanted.state, kLook);
  const bool all = wanted.state.empty() && wanted.name.empty() && wanted.label.empty();
  const size_t end = offset + wanted.rows;
  JobStore::Jobs jobs =
      parts.store.All(all ? std::max(end, kMostRows) : std::numeric_limits<size_t>::max());
  const size_t count = jobs.active.size() + jobs.count_ended;
  const std::string lower = absl::AsciiStrToLower(wanted.name);
  Selected selected;
  for (Placed& placed : InOrder(parts, std::move(jobs))) {
    const v1::Job& one = placed.job->job();
    if (NeedsLook(placed.place)) ++selected.look;
    if (look && !NeedsLook(placed.place)) continue;
    if (!all && (!HasState(one, wanted.state) || !IsNamed(one, wanted.name, lower) ||
                 (!wanted.label.empty() && !HasLabel(one, wanted.label)))) {
      continue;
    }
    const size_t index = selected.matching++;
    if (index >= offset && index < end) selected.jobs.push_back(std::move(placed.job));
  }
  if (all) selected.matching = count;
  return selected;
}

}  // namespace nsa::server
