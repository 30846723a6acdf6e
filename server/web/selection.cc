#include "server/web/selection.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clean_text.h"
#include "common/base/status.h"
#include "server/decide/lifecycle.h"

namespace nsa::server {
namespace {

bool HasLabel(const v1::Job& job, const std::string& wanted) {
  return std::ranges::any_of(job.spec().labels(), [&](const auto& label) {
    return absl::StrContains(absl::StrCat(label.first, "=", label.second), wanted);
  });
}

bool HasState(const v1::Job& job, const std::string& wanted) {
  if (wanted.empty()) return true;
  if (absl::EqualsIgnoreCase(wanted, "active")) return !IsTerminal(job.state());
  if (absl::EqualsIgnoreCase(wanted, "ended")) return IsTerminal(job.state());
  return absl::EqualsIgnoreCase(wanted, StateName(job.state()));
}

bool IsNamed(const v1::Job& job, const std::string& wanted, const std::string& lower) {
  return wanted.empty() || absl::StrContains(absl::AsciiStrToLower(job.name()), lower) ||
         absl::StrContains(job.id(), wanted);
}

// In the order of the list.
std::vector<JobPtr> InOrder(JobStore::Jobs jobs) {
  std::vector<JobPtr> all = std::move(jobs.active);
  std::ranges::reverse(all);
  std::stable_partition(all.begin(), all.end(), [](const JobPtr& job) {
    return job->job().state() != v1::Job::STATE_QUEUED;
  });
  all.insert(all.end(), std::make_move_iterator(jobs.ended.begin()),
             std::make_move_iterator(jobs.ended.end()));
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

Selected Select(const JobStore& store, const Selection& wanted, size_t offset) {
  const bool all = wanted.state.empty() && wanted.name.empty() && wanted.label.empty();
  const size_t end = offset + wanted.rows;
  JobStore::Jobs jobs = store.All(all ? end : std::numeric_limits<size_t>::max());
  const size_t count = jobs.active.size() + jobs.count_ended;
  const std::string lower = absl::AsciiStrToLower(wanted.name);
  Selected selected;
  for (JobPtr& job : InOrder(std::move(jobs))) {
    const v1::Job& one = job->job();
    if (!all && (!HasState(one, wanted.state) || !IsNamed(one, wanted.name, lower) ||
                 (!wanted.label.empty() && !HasLabel(one, wanted.label)))) {
      continue;
    }
    const size_t index = selected.matching++;
    if (index >= offset && index < end) selected.jobs.push_back(std::move(job));
  }
  if (all) selected.matching = count;
  return selected;
}

}  // namespace nsa::server
