#include "server/decide/allocation/allocation.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/decide/queue/hold.h"

namespace nsa::server {
namespace {

using v1::Allocation;
using Kind = AllocationStep::Kind;
using Phase = ClusterJob::Phase;

constexpr char kNamePrefix[] = "nsa-";

bool NumberLess(const ClusterJob& a, const ClusterJob& b) {
  int64_t number_a = 0;
  int64_t number_b = 0;
  if (absl::SimpleAtoi(a.number, &number_a) && absl::SimpleAtoi(b.number, &number_b)) {
    return number_a < number_b;
  }
  return a.number < b.number;
}

// The job that the allocation means: the one with its number, else the first that has not ended,
// else the last.
const ClusterJob* Meant(const Allocation& allocation, const std::vector<ClusterJob>& seen) {
  const ClusterJob* meant = nullptr;
  for (const ClusterJob& job : seen) {
    if (!allocation.cluster_id().empty()) {
      if (job.number == allocation.cluster_id()) return &job;
      continue;
    }
    const bool live = job.phase != Phase::kEnded;
    const bool meant_lives = meant != nullptr && meant->phase != Phase::kEnded;
    if (meant == nullptr || (live && !meant_lives) ||
        (live == meant_lives && live == NumberLess(job, *meant))) {
      meant = &job;
    }
  }
  return meant;
}

Allocation::State StateFor(const ClusterJob& job, Allocation::State before) {
  if (job.phase == Phase::kPending) return Allocation::STATE_PENDING;
  return job.phase == Phase::kRunning ? Allocation::STATE_RUNNING : before;
}

AllocationStep AfterEnd(const v1::StoredJob& job, const ClusterJob& ended) {
  if (ended.end == ClusterJob::End::kCancelled) return {Kind::kCancelled, ended};
  const bool unused = job.job().state() == v1::Job::STATE_QUEUED;
  if (unused && ended.end == ClusterJob::End::kFinished) return {Kind::kRefused, ended};
  return {Kind::kLost, ended};
}

}  // namespace

std::string ClusterName(const std::string& allocation_id) {
  return absl::StrCat(kNamePrefix, allocation_id);
}

std::string AllocationIdIn(const std::string& cluster_name) {
  absl::string_view rest = cluster_name;
  return absl::ConsumePrefix(&rest, kNamePrefix) ? std::string(rest) : "";
}

bool IsLive(const Allocation& allocation) {
  return allocation.state() == Allocation::STATE_REQUESTED ||
         allocation.state() == Allocation::STATE_PENDING ||
         allocation.state() == Allocation::STATE_RUNNING;
}

bool MachinesAreOver(const v1::Job& job) {
  return !job.spec().resources().provisioner().empty() && !IsLive(job.allocation());
}

std::string AllocatedNode(const Allocation& allocation, int index) {
  return absl::StrCat(allocation.provisioner(), "-", allocation.id(), "-", index);
}

int MachinesOf(const v1::JobSpec& spec) { return std::max(spec.resources().nodes(), 1); }

bool WantsAllocation(const v1::StoredJob& job, absl::Time now) {
  const v1::Job& shown = job.job();
  return shown.state() == v1::Job::STATE_QUEUED &&
         !shown.spec().resources().provisioner().empty() && !IsLive(shown.allocation()) &&
         shown.allocation().state() != Allocation::STATE_ENDING &&
         absl::ToUnixNanos(now) >= shown.next_start_unix_nanos() && !HoldOf(shown).has_value();
}

void EndAllocation(v1::Job* job) {
  if (IsLive(job->allocation())) job->mutable_allocation()->set_state(Allocation::STATE_ENDING);
}

void LoseMachines(const v1::Job& job, std::vector<RankView>* ranks) {
  if (!MachinesAreOver(job)) return;
  for (RankView& rank : *ranks) {
    const bool ended =
        rank.worker.has_value() && rank.worker->state() == v1::WorkerObservation::STATE_EXITED;
    if (!ended) rank.node = RankView::Node::kLost;
  }
}

bool EndsSoon(const v1::Job& job, absl::Time now) {
  const Allocation& allocation = job.allocation();
  if (allocation.state() != Allocation::STATE_RUNNING || allocation.end_unix_nanos() == 0) {
    return false;
  }
  const absl::Duration left = absl::FromUnixNanos(allocation.end_unix_nanos()) - now;
  return left <= absl::Seconds(job.spec().restart().stop_grace_seconds());
}

std::string TextOf(const ClusterJob& job) {
  const bool reason = !job.reason.empty() && job.reason != "None";
  return reason ? absl::StrCat(job.word, " (", job.reason, ")") : job.word;
}

AllocationStep NextStep(const v1::StoredJob& job, const std::vector<ClusterJob>& seen) {
  const Allocation& allocation = job.job().allocation();
  const ClusterJob* meant = Meant(allocation, seen);
  if (meant == nullptr) {
    return {allocation.cluster_id().empty() ? Kind::kSubmit : Kind::kFind, {}};
  }
  if (meant->phase == Phase::kEnded) return AfterEnd(job, *meant);
  Allocation noted = allocation;
  NoteClusterJob(*meant, &noted);
  const bool changed = noted.SerializeAsString() != allocation.SerializeAsString();
  return {changed ? Kind::kNote : Kind::kWait, *meant};
}

AllocationStep AfterFind(const v1::StoredJob& job, const std::optional<ClusterJob>& found) {
  if (!found.has_value()) {
    return {Kind::kLost,
            {.number = job.job().allocation().cluster_id(),
             .phase = Phase::kEnded,
             .word = "not known any more"}};
  }
  return found->phase == Phase::kEnded ? AfterEnd(job, *found) : AllocationStep{};
}

std::vector<std::string> ToCancel(const std::vector<ClusterJob>& seen, const std::string& keep) {
  std::vector<ClusterJob> live;
  for (const ClusterJob& job : seen) {
    if (job.phase == Phase::kPending || job.phase == Phase::kRunning) live.push_back(job);
  }
  std::ranges::sort(live, NumberLess);
  std::vector<std::string> numbers;
  for (const ClusterJob& job : live) {
    const bool first = &job == &live.front();
    if (keep == "*" ? !first : job.number != keep) numbers.push_back(job.number);
  }
  return numbers;
}

bool AllGone(const std::vector<ClusterJob>& seen) {
  return std::ranges::all_of(seen,
                             [](const ClusterJob& job) { return job.phase == Phase::kEnded; });
}

void NoteClusterJob(const ClusterJob& job, Allocation* allocation) {
  allocation->set_cluster_id(job.number);
  allocation->set_state(StateFor(job, allocation->state()));
  allocation->set_text(TextOf(job));
  // Before it runs, the end is that of a start which is only expected; while it completes, it is
  // the moment at which it was told to end.
  if (job.phase == Phase::kPending) allocation->set_end_unix_nanos(0);
  if (job.phase == Phase::kRunning) allocation->set_end_unix_nanos(job.end_unix_nanos);
}

}  // namespace nsa::server
