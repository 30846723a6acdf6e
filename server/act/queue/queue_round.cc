#include "server/act/queue/queue_round.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/count.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/estimate/fewer_ranks.h"
#include "common/estimate/shares.h"
#include "common/job/load.h"
#include "common/rpc/cordon_text.h"
#include "server/decide/job_event.h"
#include "server/decide/lifecycle.h"
#include "server/decide/machine_view.h"
#include "server/decide/queue/hold.h"
#include "server/decide/rule/preemption.h"
#include "server/decide/transition.h"
#include "spdlog/spdlog.h"

namespace nsa::server {
namespace {

// After a restart of the coordinator all agents that are well are back after this time.
constexpr absl::Duration kAllBack = absl::Seconds(10);

bool IsReady(const NodeView& node) {
  return node.state == RankView::Node::kReady && KnowsItsGpus(node.info);
}

// The machines of an allocation that are ready, with all their slots: no other job is placed there.
std::vector<NodeSlots> NodesOf(const v1::Allocation& allocation,
                               const std::vector<NodeView>& nodes) {
  std::vector<NodeSlots> ready;
  if (allocation.id().empty()) return ready;
  for (const NodeView& node : nodes) {
    if (node.info.allocation() != allocation.id() || !IsReady(node)) continue;
    ready.push_back(FreeSlots(node.info, {}));
    ready.back().makeup.clock_offset = node.clock_offset;
  }
  return ready;
}

void Append(QueuePlan more, QueuePlan* plan) {
  std::ranges::move(more.placements, std::back_inserter(plan->placements));
  std::ranges::move(more.waiting, std::back_inserter(plan->waiting));
  std::ranges::move(more.order, std::back_inserter(plan->order));
}

// Its machines are its own: it competes with no other job.
bool HasProvisioner(const v1::StoredJob& job) {
  return !job.job().spec().resources().provisioner().empty();
}

// A job without the label has the value "".
std::string LabelOf(const v1::StoredJob& job, const std::string& label) {
  const auto& labels = job.job().spec().labels();
  const auto found = labels.find(label);
  return found == labels.end() ? "" : found->second;
}

// "job urgent (j0a1b2c3d4e5f), priority 10". Callers limited to their own jobs see only the
// priority of other jobs.
std::string Named(const v1::Job& job, const v1::Job& reader) {
  return absl::StrCat(job.owner() == reader.owner()
                          ? absl::StrCat("job ", job.name(), " (", job.id(), ")")
                          : "a job of another owner",
                      ", priority ", job.spec().priority());
}

std::string VictimText(const v1::Job& victim, const v1::Job& waiting) {
  return absl::StrCat("gives way to ", Named(waiting, victim), "; this job's priority is ",
                      victim.spec().priority(),
                      victim.state() == v1::Job::STATE_RUNNING
                          ? ": the ranks end after the step in progress with a checkpoint, and the "
                            "job is queued again"
                          : ": it is queued again instead of being restarted now");
}

// Bytes of memory of the rank that has least: of its GPU, or on the CPU its part of its machine's.
// 0 where a machine does not say.
int64_t LeastMemory(const Placement& placement, const std::vector<NodeView>& nodes) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const v1::RankPlacement& rank : placement.ranks) {
    const auto node = std::ranges::find(nodes, rank.node(),
                                        [](const NodeView& view) { return view.info.name(); });
    if (node == nodes.end()) return 0;
    const auto& gpus = node->info.gpus();
    const auto gpu = std::ranges::find(gpus, rank.cuda_device(), &v1::GpuInfo::uuid);
    if (!rank.cuda_device().empty()) {
      least = std::min(least, gpu == gpus.end() ? 0 : gpu->memory_bytes());
      continue;
    }
    const int64_t beside =
        std::ranges::count(placement.ranks, rank.node(), &v1::RankPlacement::node);
    least = std::min(least, node->info.memory_bytes() / beside);
  }
  return least;
}

// What depends on the machines that the job gets: its device, and runtime.shard: auto. Both stay
// what they are when the job starts again elsewhere.
void Decide(const Placement& placement, const std::vector<NodeView>& nodes, v1::JobSpec* spec) {
  ResolveDevice(!placement.ranks.front().cuda_device().empty(), spec);
  if (spec->runtime().shard() != v1::SHARD_AUTO) return;
  v1::JobSpec placed = *spec;  // it may have fewer ranks than it asks for
  placed.mutable_resources()->set_gpus(static_cast<int32_t>(placement.ranks.size()));
  ResolveShard(LeastMemory(placement, nodes), &placed);
  SetShard(placed.runtime().shard(), spec);
}

}  // namespace

bool QueueRound::Run(const std::vector<JobPtr>& active, const std::vector<NodeView>& nodes,
                     const Cordons& cordons) {
  const QueuePlan plan = Plan(active, nodes, cordons);
  for (const std::string& id : parts_.board.Post(plan)) parts_.changed(id);
  for (const Placement& placement : plan.placements) Place(placement);
  if (!plan.preemptions.empty()) {
    std::unordered_map<std::string_view, JobPtr> by_id;
    for (const JobPtr& job : active) by_id.emplace(job->job().id(), job);
    for (const Preemption& one : plan.preemptions) {
      GiveWay(by_id.at(one.victim), by_id.at(one.waiting));
    }
  }
  return !plan.placements.empty() || !plan.preemptions.empty();
}

// The active jobs without those that are not in the queue yet: nobody waits behind them. Those that
// a Hold keeps out are added to `apart`.
std::vector<JobPtr> QueueRound::InLine(const std::vector<JobPtr>& active, QueuePlan* apart) const {
  std::vector<JobPtr> line;
  for (const JobPtr& job : active) {
    if (job->job().state() == v1::Job::STATE_QUEUED) {
      // A postponed job waits until its next start is due.
      const bool postponed = job->job().next_start_unix_nanos() != 0;
      if (postponed && parts_.clock.Monotonic() < parts_.memory.RefusalsOf(job->job()).due) {
        continue;
      }
      if (const std::optional<Hold> hold = HoldOf(job->job())) {
        apart->waiting.push_back({job->job().id(), hold->reason, hold->text});
        continue;
      }
    }
    line.push_back(job);
  }
  return line;
}

QueuePlan QueueRound::Plan(const std::vector<JobPtr>& active, const std::vector<NodeView>& nodes,
                           const Cordons& cordons) const {
  const HeldSlots held = SlotsHeld(active);
  std::vector<NodeSlots> free;
  bool any_gpu = false;
  for (const NodeView& node : nodes) {
    if (!node.info.allocation().empty() || !IsReady(node)) continue;
    free.push_back(FreeSlots(node.info, held));
    free.back().makeup.clock_offset = node.clock_offset;
    any_gpu = any_gpu || free.back().gpus_total > 0;
    const auto cordon = cordons.find(node.info.name());
    if (cordon != cordons.end()) free.back().cordon = CordonText(cordon->second);
  }
  QueuePlan apart;  // of jobs that compete with no other
  const std::vector<JobPtr> line = InLine(active, &apart);
  const std::map<std::string, std::string> held_back = HeldByQuota(
      line, parts_.scheduling.quotas,
      [this](const std::string& owner) { return parts_.store.GpuHoursOf(owner); },
      parts_.clock.Wall());
  std::vector<QueuedJob> queue;
  for (const JobPtr& job : line) {
    if (job->job().state() != v1::Job::STATE_QUEUED) continue;
    if (HasProvisioner(*job)) {
      const std::string silence =
          parts_.fleet.SilentCluster(job->job().spec().resources().provisioner());
      Append(PlanAllocated(*job, NodesOf(job->job().allocation(), nodes), silence), &apart);
      continue;
    }
    if (const auto why = held_back.find(job->job().id()); why != held_back.end()) {
      apart.waiting.push_back({why->first, Word(Reason::kWaitingForQuota), why->second});
      continue;
    }
    QueuedJob& queued = queue.emplace_back(InQueue(*job, any_gpu));
    const bool postponed = job->job().next_start_unix_nanos() != 0;
    queued.may_preempt = parts_.scheduling.preempt && !postponed;
    queued.share = LabelOf(*job, parts_.scheduling.fair_share_label);
  }
  const QueueRules rules = queue.empty() ? QueueRules() : Rules(active);
  QueuePlan plan = Schedule(queue, std::move(free), rules);
  Append(std::move(apart), &plan);
  return plan;
}

QueueRules QueueRound::Rules(const std::vector<JobPtr>& active) const {
  const SchedulingPolicy& policy = parts_.scheduling;
  QueueRules rules;
  rules.machines_missing = parts_.clock.Monotonic() - started_ < kAllBack;
  if (!policy.fair_share_label.empty()) {
    Shares& shares = rules.shares.emplace();
    for (const JobPtr& job : active) {
      if (HasProvisioner(*job) || !HoldsSlots(job->job().state())) continue;
      for (const v1::RankPlacement& place : job->placements()) {
        ++shares[{!place.cuda_device().empty(), LabelOf(*job, policy.fair_share_label)}];
      }
    }
  }
  for (const JobPtr& job : active) {
    // What began before the configuration was changed is finished.
    const bool concerned = policy.preempt || !job->preempted_by().empty();
    if (!concerned || HasProvisioner(*job)) continue;
    if (!HoldsSlots(job->job().state()) && job->preempted_by().empty()) continue;
    rules.running.push_back(RunningFor(*job, policy.preempt_after, parts_.clock.Wall()));
  }
  return rules;
}

void QueueRound::Place(const Placement& placement) {
  const auto ranks = static_cast<int64_t>(placement.ranks.size());
  const std::vector<NodeView> nodes = parts_.fleet.Nodes();
  const auto change = [&](v1::StoredJob* stored,
                          std::vector<v1::JobEvent>* events) -> absl::Status {
    const std::string where =
        absl::StrCat(RanksText(stored->job().spec(), ranks),
                     ranks == 1 ? " on " : ", the first on ", placement.ranks.front().node());
    NSA_RETURN_IF_ERROR(
        Apply(Trigger::kPlaced, {.text = where}, parts_.clock.Wall(), stored, events));
    stored->mutable_placements()->Assign(placement.ranks.begin(), placement.ranks.end());
    Decide(placement, nodes, stored->mutable_job()->mutable_spec());
    return absl::OkStatus();
  };
  const auto placed = parts_.store.Update(placement.job_id, change);
  if (!placed.ok()) {
    spdlog::warn("job {}: {}", placement.job_id, std::string(placed.status().message()));
  }
}

// The victim first: once that is on disk, it gives way whatever happens to this process.
void QueueRound::GiveWay(const JobPtr& victim, const JobPtr& waiting) {
  const absl::Time now = parts_.clock.Wall();
  const bool runs = victim->job().state() == v1::Job::STATE_RUNNING;
  const auto give = [&](v1::StoredJob* stored, std::vector<v1::JobEvent>* events) -> absl::Status {
    if (stored->job().state() != victim->job().state() ||
        !MayGiveWay(*stored, parts_.scheduling.preempt_after, now)) {
      return absl::AbortedError("the job has moved on");
    }
    // A job that waits for a restart has no ranks to end.
    const Cause cause = {.reason = Word(runs ? Reason::kGivingWay : Reason::kPreempted),
                         .text = VictimText(victim->job(), waiting->job())};
    NSA_RETURN_IF_ERROR(
        Apply(runs ? Trigger::kMoveAsked : Trigger::kMoved, cause, now, stored, events));
    stored->set_preempted_by(waiting->job().id());
    return absl::OkStatus();
  };
  absl::Status done = parts_.store.Update(victim->job().id(), give).status();
  if (done.ok()) {
    const auto tell = [&](v1::StoredJob* /*stored*/, std::vector<v1::JobEvent>* events) {
      events->push_back(EventOf(
          Reason::kPreempting,
          absl::StrCat(Named(victim->job(), waiting->job()),
                       ", gives way to this job: ", Count(victim->placements_size(), "rank"))));
      return absl::OkStatus();
    };
    done = parts_.store.Update(waiting->job().id(), tell).status();
    spdlog::info("job {} gives way to job {}", victim->job().id(), waiting->job().id());
  }
  if (!done.ok() && !absl::IsAborted(done)) {
    spdlog::warn("job {} was to give way to job {}: {}", victim->job().id(), waiting->job().id(),
                 std::string(done.message()));
  }
}

}  // namespace nsa::server
