#include "server/web/selection.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clean_text.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/estimate/health.h"
#include "common/estimate/state_title.h"
#include "server/decide/lifecycle.h"
#include "server/decide/problem/problems.h"
#include "server/web/view_cache.h"

namespace nsa::server {
namespace {

constexpr char kLook[] = "look";
constexpr size_t kMostKnown = 4 * kMostRows;

bool HasLabel(const v1::Job& job, const std::string& wanted) {
  return std::ranges::any_of(job.spec().labels(), [&](const auto& label) {
    return absl::StrContains(absl::StrCat(label.first, "=", label.second), wanted);
  });
}

bool NeedsLook(Place place) { return place <= Place::kWarning; }

Place PlaceOf(const Web::Parts& parts, const JobPtr& stored, absl::Time now) {
  const v1::Job& job = stored->job();
  if (IsTerminal(job.state())) {
    const bool fresh = absl::FromUnixNanos(job.end_unix_nanos()) >= now - kFresh;
    return fresh ? parts.places->OfEnded(stored) : Place::kEnded;
  }
  if (job.state() == v1::Job::STATE_QUEUED) return Place::kWaiting;
  const std::shared_ptr<const v1::Job> view = parts.views->Of(stored);
  const v1::Problem* const worst = WorstProblem(*view);
  if (worst == nullptr) return Place::kTraining;
  return worst->level() == v1::JobHealth::LEVEL_BAD ? Place::kBad : Place::kWarning;
}

bool HasState(const v1::Job& job, const std::string& wanted) {
  if (wanted.empty() || absl::EqualsIgnoreCase(wanted, kLook)) return true;
  if (absl::EqualsIgnoreCase(wanted, "active")) return !IsTerminal(job.state());
  if (absl::EqualsIgnoreCase(wanted, "ended")) return IsTerminal(job.state());
  return absl::EqualsIgnoreCase(wanted, StateName(job.state())) ||
         absl::EqualsIgnoreCase(wanted, StateTitle(job));
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
    const Place place = PlaceOf(parts, job, now);
    all.push_back({place, std::move(job)});
  }
  for (size_t i = 0; i < jobs.ended.size(); ++i) {
    const Place place = i < kMostRows ? PlaceOf(parts, jobs.ended[i], now) : Place::kEnded;
    all.push_back({place, std::move(jobs.ended[i])});
  }
  std::ranges::stable_sort(all, {}, &Placed::place);
  return all;
}

// Adds a job, in the order of the list.
void Count(const Placed& placed, FleetVerdict* verdict) {
  const v1::Job& job = placed.job->job();
  if (NeedsLook(placed.place)) {
    ++verdict->need;
    if (verdict->worst.size() < kMostCards) verdict->worst.push_back(placed.job);
  }
  if (job.state() == v1::Job::STATE_QUEUED) ++verdict->waiting;
  if (!NeedsLook(placed.place) && !IsTerminal(job.state()) &&
      std::ranges::any_of(job.mutes(), [&](const v1::Mute& mute) { return Holds(mute, job); })) {
    ++verdict->muted;
  }
  if (!HoldsSlots(job.state())) return;
  ++verdict->running;
  if (!NeedsLook(placed.place)) ++verdict->fine;
  const double left = job.progress().eta_seconds();
  if (job.state() != v1::Job::STATE_RUNNING || !(left >= 0) || job.progress().step() == 0) return;
  if (verdict->next_end == nullptr || left < verdict->next_end->job().progress().eta_seconds()) {
    verdict->next_end = placed.job;
  }
}

// "each needs 2 GPUs", "each needs 4 CPU slots on 2 machines".
std::string NeedsText(const v1::JobSpec& spec) {
  const int ranks = std::max(1, spec.resources().gpus());
  const char* const what = spec.runtime().device() == v1::DEVICE_CPU ? "CPU slot" : "GPU";
  const int nodes = spec.resources().nodes();
  return absl::StrCat("each needs ", ranks, " ", what, ranks == 1 ? "" : "s",
                      nodes > 1 ? absl::StrCat(" on ", nodes, " machines") : "");
}

// Why jobs are in the queue, in the words of the page for several jobs at once. `reason` is the one
// that the queue board has for `job`.
std::string WaitsFor(const v1::Job& job, const std::string& reason) {
  if (reason == Word(Reason::kWaitingForQuota)) {
    return absl::StrCat("held by the quota of ", job.owner());
  }
  if (reason == Word(Reason::kWaitingForTime)) return "until their start times";
  if (reason == Word(Reason::kWaitingForJobs)) return "for other jobs to end";
  return NeedsText(job.spec());
}

// Collects the groups of the jobs that match.
class JobGroups {
 public:
  explicit JobGroups(const QueueBoard& board) : board_(board) {}

  void Add(const Placed& placed, bool sent) {
    const v1::Job& job = placed.job->job();
    const bool of_sweep = job.spec().has_sweep();
    if (!of_sweep && job.state() != v1::Job::STATE_QUEUED) return;
    std::string name =
        of_sweep ? job.spec().sweep().name() : WaitsFor(job, board_.PlaceOf(job.id()).reason);
    const auto [at, fresh] =
        index_.try_emplace({of_sweep, of_sweep ? job.owner() : "", name}, groups_.size());
    if (fresh) groups_.emplace_back();
    JobGroup& group = groups_[at->second];
    group.of_sweep = of_sweep;
    group.name = std::move(name);
    ++group.jobs;
    ++group.states[job.state()];
    if (NeedsLook(placed.place)) ++group.need;
    if (sent) group.ids.push_back(job.id());
    const v1::JobProgress& progress = job.progress();
    if (progress.val_step() == 0 || !std::isfinite(progress.val_loss())) return;
    if (group.best == nullptr || progress.val_loss() < group.best->job().progress().val_loss()) {
      group.best = placed.job;
    }
  }

  // Those that are worth a row.
  std::vector<JobGroup> Take() {
    std::erase_if(groups_, [](const JobGroup& group) {
      return group.jobs < (group.of_sweep ? 2 : kLeastWaiting) || group.ids.empty();
    });
    return std::move(groups_);
  }

 private:
  using Key = std::tuple<bool, std::string, std::string>;
  const QueueBoard& board_;
  std::map<Key, size_t> index_;
  std::vector<JobGroup> groups_;
};

}  // namespace

Place PlaceCache::OfEnded(const JobPtr& job) {
  {
    MutexLock lock(&mutex_);
    const auto known = known_.find(job->job().id());
    if (known != known_.end() && known->second.job == job) return known->second.place;
  }
  v1::Job view = job->job();
  AddProblems(HealthFindings(view), job->state_unix_nanos(), &view);
  Place place = Place::kEnded;
  if (const v1::Problem* const worst = WorstProblem(view); worst != nullptr) {
    place = worst->level() == v1::JobHealth::LEVEL_BAD ? Place::kFailed : Place::kWarning;
  }
  MutexLock lock(&mutex_);
  if (known_.size() >= kMostKnown) known_.clear();
  known_[job->job().id()] = {.job = job, .place = place};
  return place;
}

void PlaceCache::Forget(const std::string& job_id) {
  MutexLock lock(&mutex_);
  known_.erase(job_id);
}

std::string VerdictWords(const FleetVerdict& verdict) {
  const std::string need = verdict.need == 0   ? "Nothing needs you"
                           : verdict.need == 1 ? "1 needs you"
                                               : absl::StrCat(verdict.need, " need you");
  if (verdict.running == 0) return absl::StrCat(need, "; nothing runs.");
  if (verdict.fine < verdict.running) {
    return absl::StrCat(need, ". ", verdict.fine, " of ", verdict.running,
                        verdict.fine == 1 ? " is fine." : " are fine.");
  }
  return absl::StrCat(need, verdict.running == 1
                                ? ". The one that runs is fine."
                                : absl::StrCat(". All ", verdict.running, " that run are fine."));
}

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
  JobGroups groups(parts.board);
  for (Placed& placed : InOrder(parts, std::move(jobs))) {
    const v1::Job& one = placed.job->job();
    Count(placed, &selected.verdict);
    if (look && !NeedsLook(placed.place)) continue;
    if (!all && (!HasState(one, wanted.state) || !IsNamed(one, wanted.name, lower) ||
                 (!wanted.label.empty() && !HasLabel(one, wanted.label)))) {
      continue;
    }
    const size_t index = selected.matching++;
    const bool sent = index >= offset && index < end;
    groups.Add(placed, sent);
    if (sent) selected.jobs.push_back(std::move(placed.job));
  }
  selected.groups = groups.Take();
  if (all) selected.matching = count;
  return selected;
}

}  // namespace nsa::server
