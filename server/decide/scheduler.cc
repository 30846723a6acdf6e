#include "server/decide/scheduler.h"

#include <algorithm>
#include <map>

#include "common/base/reason.h"
#include "server/decide/allocation/allocation.h"
#include "server/decide/queue/fit.h"
#include "server/decide/queue/waiting.h"
#include "server/decide/rule/fair_share.h"
#include "server/decide/rule/preemption.h"

namespace nsa::server {
namespace {

// Jobs to which others give way, or gave way since they were queued.
class Awaited {
 public:
  explicit Awaited(const std::vector<RunningJob>& running) {
    for (const RunningJob& job : running) {
      if (job.preempted_by.empty()) continue;
      int64_t& since = since_.try_emplace(job.preempted_by, job.since).first->second;
      since = std::max(since, job.since);
    }
  }
  bool empty() const { return since_.empty(); }
  bool Has(const QueuedJob& job) const {
    const auto found = since_.find(job.id);
    return found != since_.end() && found->second >= job.order;
  }

 private:
  std::map<std::string_view, int64_t> since_;  // when the last one began to, by id
};

// The queue, first in line first.
std::vector<const QueuedJob*> InOrder(const std::vector<QueuedJob>& queue, const QueueRules& rules,
                                      const Awaited& awaited, Limits* limits) {
  std::vector<const QueuedJob*> line;
  line.reserve(queue.size());
  for (const QueuedJob& job : queue) line.push_back(&job);
  std::ranges::stable_sort(line, [](const QueuedJob* a, const QueuedJob* b) {
    return a->priority != b->priority ? a->priority > b->priority : a->order < b->order;
  });
  if (rules.shares.has_value()) {
    SortByShare(
        *rules.shares, [&](const QueuedJob& job) { return limits->Of(job) == Limits::Fit::kRoom; },
        &line);
  }
  if (awaited.empty()) return line;
  std::ranges::stable_sort(line, [&](const QueuedJob* a, const QueuedJob* b) {
    return a->priority != b->priority ? a->priority > b->priority
                                      : awaited.Has(*a) && !awaited.Has(*b);
  });
  return line;
}

}  // namespace

// Main path 3/7: schedule.
QueuePlan Schedule(const std::vector<QueuedJob>& queue, std::vector<NodeSlots> nodes,
                   const QueueRules& rules) {
  Pools pools(nodes);
  Limits limits(&pools);
  Reasons reasons(nodes);
  const Awaited awaited(rules.running);
  QueuePlan plan;
  const QueuedJob* first_waiting[2] = {};  // by kind: CPU, GPU
  std::vector<const QueuedJob*> for_slots;
  for (const QueuedJob* next : InOrder(queue, rules, awaited, &limits)) {
    const QueuedJob& job = *next;
    plan.order.push_back(job.id);
    const QueuedJob*& ahead = first_waiting[job.cuda];
    const Limits::Fit fit = limits.Of(job);
    if (fit != Limits::Fit::kRoom) {
      plan.waiting.push_back(fit == Limits::Fit::kNever ? reasons.Unplaceable(job)
                                                        : reasons.ForCordons(job));
      if (ahead == nullptr && rules.machines_missing && awaited.Has(job)) ahead = &job;
      continue;
    }
    if (ahead != nullptr) {
      plan.waiting.push_back(Reasons::Behind(job, *ahead));
    } else {
      auto placement = PlaceAll(job, &pools);
      const std::string giving_way = placement ? "" : GivingWayText(job, rules.running);
      // Jobs that give way, and machines that are still missing, may make room for all its ranks.
      const bool fewer = giving_way.empty() && !rules.machines_missing;
      if (!placement && fewer) placement = PlaceFewer(job, &pools);
      if (placement) {
        plan.placements.push_back(*std::move(placement));
        continue;
      }
      plan.waiting.push_back(reasons.ForSlots(job, giving_way));
      ahead = &job;
    }
    for_slots.push_back(&job);
  }
  if (!rules.machines_missing) {
    plan.preemptions = PlanPreemptions(for_slots, std::move(nodes), rules.running);
  }
  return plan;
}

QueuePlan PlanAllocated(const v1::StoredJob& job, std::vector<NodeSlots> nodes,
                        const std::string& silence) {
  const int ready = static_cast<int>(nodes.size());
  const bool runs = job.job().allocation().state() == v1::Allocation::STATE_RUNNING;
  if (!runs || ready < MachinesOf(job.job().spec())) {
    const std::string& id = job.job().id();
    const std::string text = AllocationText(job.job(), ready, silence);
    return {.waiting = {{id, Word(Reason::kWaitingForAllocation), text}}, .order = {id}};
  }
  const bool any_gpu =
      std::ranges::any_of(nodes, [](const NodeSlots& node) { return node.gpus_total > 0; });
  return Schedule({InQueue(job, any_gpu)}, std::move(nodes));
}

}  // namespace nsa::server
