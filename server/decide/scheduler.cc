#include "server/decide/scheduler.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/count.h"
#include "common/base/reason.h"
#include "server/decide/allocation/allocation.h"
#include "server/decide/lifecycle.h"
#include "server/decide/rule/fair_share.h"
#include "server/decide/rule/preemption.h"

namespace nsa::server {
namespace {

int32_t Total(const NodeSlots& node, bool cuda) { return cuda ? node.gpus_total : node.cpu_total; }

// "2 GPUs", "1 CPU slot".
std::string Slots(int32_t count, bool cuda) { return Count(count, cuda ? "GPU" : "CPU slot"); }

// Whether ranks of the job can reach ranks on other machines from here, if they have to.
bool Reaches(const QueuedJob& job, const NodeSlots& node) {
  return job.nodes == 1 || node.has_rank_address;
}

// Whether the machine knows as whom to run the job.
bool HasUser(const QueuedJob& job, const NodeSlots& node) {
  return job.has_unix_user || !node.unix_users;
}

// Whether the machine may run ranks of the job, cordoned or not.
bool MayRun(const QueuedJob& job, const NodeSlots& node) {
  return Reaches(job, node) && HasUser(job, node);
}

// Whether the machine has room for its share of the job's ranks if nothing else runs.
bool Suits(const QueuedJob& job, const NodeSlots& node) {
  return MayRun(job, node) && Total(node, job.cuda) >= RanksPerNode(job);
}

// Machines from which all those of a job are taken.
using Pool = std::vector<NodeSlots*>;

// The pools of jobs, remembered by what must be equal.
class Pools {
 public:
  explicit Pools(std::vector<NodeSlots>& nodes) : nodes_(nodes) {}

  const std::vector<Pool>& For(const QueuedJob& job) {
    const bool several = job.nodes > 1;
    const auto [known, isnew] =
        known_.try_emplace({several, several && job.demand.cuda, several && job.demand.programs,
                            several && job.demand.clocks});
    if (isnew) {
      for (const Group& group : GroupsFor(job, nodes_)) {
        Pool& pool = known->second.emplace_back();
        for (const size_t i : group) pool.push_back(&nodes_[i]);
      }
    }
    return known->second;
  }

 private:
  std::vector<NodeSlots>& nodes_;
  std::map<std::tuple<bool, bool, bool, bool>, std::vector<Pool>> known_;
};

// Whether jobs would fit if nothing else ran. Remembered by what they ask for: a long queue holds
// many jobs of few kinds.
class Limits {
 public:
  enum class Fit { kRoom, kOnlyCordoned, kNever };

  explicit Limits(Pools* pools) : pools_(*pools) {}

  Fit Of(const QueuedJob& job) {
    const auto [known, isnew] =
        known_.try_emplace({RanksPerNode(job), job.nodes, job.cuda, job.has_unix_user,
                            job.demand.programs, job.demand.clocks},
                           Fit::kNever);
    if (isnew) known->second = Look(job);
    return known->second;
  }

 private:
  Fit Look(const QueuedJob& job) const {
    Fit best = Fit::kNever;
    for (const Pool& pool : pools_.For(job)) {
      int32_t all = 0;
      int32_t usable = 0;
      for (const NodeSlots* node : pool) {
        if (!Suits(job, *node)) continue;
        ++all;
        if (node->cordon.empty()) ++usable;
      }
      if (usable >= job.nodes) return Fit::kRoom;
      if (all >= job.nodes) best = Fit::kOnlyCordoned;
    }
    return best;
  }

  Pools& pools_;
  std::map<std::tuple<int32_t, int32_t, bool, bool, bool, bool>, Fit> known_;
};

// The machines of a pool for a job, those with the fewest free slots first. Empty when too few have
// room.
Pool Choose(const QueuedJob& job, const Pool& pool) {
  Pool fitting;
  for (NodeSlots* node : pool) {
    if (Usable(job, *node) && Free(*node, job.cuda) >= RanksPerNode(job)) fitting.push_back(node);
  }
  if (static_cast<int32_t>(fitting.size()) < job.nodes) return {};
  std::ranges::partial_sort(fitting, fitting.begin() + job.nodes,
                            [&](const NodeSlots* a, const NodeSlots* b) {
                              const int32_t free_a = Free(*a, job.cuda);
                              const int32_t free_b = Free(*b, job.cuda);
                              return free_a != free_b ? free_a < free_b : a->name < b->name;
                            });
  fitting.resize(job.nodes);
  return fitting;
}

Placement Take(const QueuedJob& job, const Pool& nodes) {
  Placement placement{.job_id = job.id};
  int32_t rank = 0;
  for (NodeSlots* node : nodes) {
    for (int32_t i = 0; i < RanksPerNode(job) && rank < job.ranks; ++i, ++rank) {
      v1::RankPlacement& place = placement.ranks.emplace_back();
      place.set_rank(rank);
      place.set_node(node->name);
      if (job.cuda) {
        place.set_cuda_device(node->gpus_free.front());
        node->gpus_free.erase(node->gpus_free.begin());
      } else {
        --node->cpu_free;
      }
    }
  }
  return placement;
}

// Places the job in the first pool that has room.
std::optional<Placement> PlaceIn(const QueuedJob& job, const std::vector<Pool>& pools) {
  for (const Pool& pool : pools) {
    if (const Pool chosen = Choose(job, pool); !chosen.empty()) return Take(job, chosen);
  }
  return std::nullopt;
}

// "1 machine is cordoned: gpu-3, drained by alice (new kernel)"; empty if none is.
std::string CordonedText(const std::vector<NodeSlots>& nodes) {
  constexpr int64_t kNamed = 3;
  int64_t count = 0;
  std::string names;
  for (const NodeSlots& node : nodes) {
    if (node.cordon.empty()) continue;
    if (++count <= kNamed) absl::StrAppend(&names, "; ", node.name, ", ", node.cordon);
  }
  if (count == 0) return "";
  return absl::StrCat(Count(count, "machine"), count == 1 ? " is" : " are",
                      " cordoned: ", names.substr(2), count > kNamed ? "; …" : "");
}

// The job would fit if no machine were cordoned.
Waiting WaitsForCordons(const QueuedJob& job, const std::vector<NodeSlots>& nodes) {
  return {job.id, Word(Reason::kCordoned),
          absl::StrCat("needs ", Slots(RanksPerNode(job), job.cuda), " on each of ",
                       Count(job.nodes, "machine"), "; ", CordonedText(nodes),
                       ". Uncordon one (nsactl node uncordon) or add machines")};
}

// How the machines differ that would suit a job of several; nothing if there are too few anyway.
MachineDifferences DifferencesFor(const QueuedJob& job, const std::vector<NodeSlots>& nodes) {
  if (job.nodes == 1) return {};
  std::vector<Makeup> suiting;
  for (const NodeSlots& node : nodes) {
    if (Suits(job, node)) suiting.push_back(node.makeup);
  }
  if (static_cast<int32_t>(suiting.size()) < job.nodes) return {};
  return DifferencesOf(suiting, job.demand);
}

Waiting Unplaceable(const QueuedJob& job, const std::vector<NodeSlots>& nodes) {
  if (nodes.empty()) {
    return {job.id, Word(Reason::kNoNodes), "no machine is ready; `nsactl nodes` shows them"};
  }
  if (const MachineDifferences differences = DifferencesFor(job, nodes);
      !differences.text.empty()) {
    return {job.id, Word(Reason::kUnplaceable),
            absl::StrCat("needs ", Count(job.nodes, "machine"), " that can work together; ",
                         differences.text, "; ", differences.fix)};
  }
  int32_t most = 0;
  for (const NodeSlots& node : nodes) most = std::max(most, Total(node, job.cuda));
  const auto reaching =
      std::ranges::count_if(nodes, [&](const NodeSlots& node) { return Reaches(job, node); });
  std::string text =
      absl::StrCat("needs ", Slots(RanksPerNode(job), job.cuda), " on each of ",
                   Count(job.nodes, "machine"), "; ", nodes.size(), " are ready, the largest has ",
                   most, ". Lower resources.gpus or add machines");
  if (reaching < job.nodes) {
    absl::StrAppend(&text, "; ", reaching, " of them have a rank_address (agent.yaml)");
  }
  const auto closed =
      std::ranges::count_if(nodes, [&](const NodeSlots& node) { return !HasUser(job, node); });
  if (closed > 0) {
    absl::StrAppend(&text, "; ", closed,
                    " of them run only jobs with a Unix user (unix_users in agent.yaml): submit "
                    "with a token made with `nsactl token create --unix-user`");
  }
  return {job.id, Word(Reason::kUnplaceable), std::move(text)};
}

// Why a job is not placed whose allocation is not complete.
std::string AllocationText(const v1::Job& job, int ready) {
  const v1::Allocation& allocation = job.allocation();
  switch (allocation.state()) {
    case v1::Allocation::STATE_RUNNING:
      return absl::StrCat("waiting for agents: ", ready, " of ", MachinesOf(job.spec()),
                          " are ready on the machines of ", allocation.provisioner(), " job ",
                          allocation.cluster_id());
    case v1::Allocation::STATE_REQUESTED:
    case v1::Allocation::STATE_PENDING:
      return absl::StrCat("waiting for ", allocation.provisioner(), ": ",
                          allocation.text().empty() ? "asking for machines" : allocation.text());
    case v1::Allocation::STATE_ENDING:
      return absl::StrCat("waiting until ", allocation.provisioner(),
                          " has taken its earlier machines back");
    default:
      return absl::StrCat("waiting for ", job.spec().resources().provisioner());
  }
}

Waiting WaitsForSlots(const QueuedJob& job, const std::vector<NodeSlots>& nodes,
                      const std::string& giving_way) {
  int32_t free = 0;
  for (const NodeSlots& node : nodes) {
    if (node.cordon.empty()) free += Free(node, job.cuda);
  }
  std::string text = absl::StrCat("needs ", Slots(job.ranks, job.cuda), ", ", free,
                                  free == 1 ? " is free" : " are free");
  for (const std::string& more : {giving_way, CordonedText(nodes)}) {
    if (!more.empty()) absl::StrAppend(&text, "; ", more);
  }
  if (const std::string differ = DifferencesFor(job, nodes).text; !differ.empty()) {
    absl::StrAppend(&text, "; not all machines can work together: ", differ);
  }
  return {job.id, Word(Reason::kWaitingForSlots), std::move(text)};
}

// "2 jobs give way to it"; empty if none does.
std::string GivingWayText(const QueuedJob& job, const std::vector<RunningJob>& running) {
  const auto count = std::ranges::count_if(running, [&](const RunningJob& other) {
    return other.preempted_by == job.id && !other.slots.empty();
  });
  if (count == 0) return "";
  return absl::StrCat(Count(count, "job"), count == 1 ? " gives" : " give", " way to it");
}

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

int32_t RanksPerNode(const QueuedJob& job) { return (job.ranks + job.nodes - 1) / job.nodes; }

int32_t Free(const NodeSlots& node, bool cuda) {
  return cuda ? static_cast<int32_t>(node.gpus_free.size()) : node.cpu_free;
}

bool Usable(const QueuedJob& job, const NodeSlots& node) {
  return node.cordon.empty() && MayRun(job, node);
}

std::vector<Group> GroupsFor(const QueuedJob& job, const std::vector<NodeSlots>& nodes) {
  if (job.nodes == 1) {
    Group all(nodes.size());
    std::iota(all.begin(), all.end(), 0);
    return {std::move(all)};
  }
  std::vector<Makeup> makeups;
  for (const NodeSlots& node : nodes) makeups.push_back(node.makeup);
  return Groups(makeups, job.demand);
}

std::optional<Placement> PlaceJob(const QueuedJob& job, std::vector<NodeSlots>* nodes) {
  Pools pools(*nodes);
  return PlaceIn(job, pools.For(job));
}

// Main path 3/7: schedule.
QueuePlan Schedule(const std::vector<QueuedJob>& queue, std::vector<NodeSlots> nodes,
                   const QueueRules& rules) {
  Pools pools(nodes);
  Limits limits(&pools);
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
      plan.waiting.push_back(fit == Limits::Fit::kNever ? Unplaceable(job, nodes)
                                                        : WaitsForCordons(job, nodes));
      if (ahead == nullptr && rules.machines_missing && awaited.Has(job)) ahead = &job;
      continue;
    }
    if (ahead != nullptr) {
      plan.waiting.push_back({job.id, Word(Reason::kBehindAnotherJob),
                              absl::StrCat("job ", ahead->name, " is first in line")});
    } else if (auto placement = PlaceIn(job, pools.For(job))) {
      plan.placements.push_back(*std::move(placement));
      continue;
    } else {
      plan.waiting.push_back(WaitsForSlots(job, nodes, GivingWayText(job, rules.running)));
      ahead = &job;
    }
    for_slots.push_back(&job);
  }
  if (!rules.machines_missing) {
    plan.preemptions = PlanPreemptions(for_slots, std::move(nodes), rules.running);
  }
  return plan;
}

QueuePlan PlanAllocated(const v1::StoredJob& job, std::vector<NodeSlots> nodes) {
  const int ready = static_cast<int>(nodes.size());
  const bool runs = job.job().allocation().state() == v1::Allocation::STATE_RUNNING;
  if (!runs || ready < MachinesOf(job.job().spec())) {
    const std::string& id = job.job().id();
    return {
        .waiting = {{id, Word(Reason::kWaitingForAllocation), AllocationText(job.job(), ready)}},
        .order = {id}};
  }
  const bool any_gpu =
      std::ranges::any_of(nodes, [](const NodeSlots& node) { return node.gpus_total > 0; });
  return Schedule({InQueue(job, any_gpu)}, std::move(nodes));
}

HeldSlots SlotsHeld(const std::vector<std::shared_ptr<const v1::StoredJob>>& active) {
  HeldSlots held;
  for (const auto& job : active) {
    if (!HoldsSlots(job->job().state())) continue;
    for (const v1::RankPlacement& place : job->placements()) held[place.node()].push_back(&place);
  }
  return held;
}

NodeSlots FreeSlots(const v1::NodeInfo& info, const HeldSlots& held) {
  NodeSlots slots{.name = info.name(),
                  .cpu_free = info.cpu_slots(),
                  .cpu_total = info.cpu_slots(),
                  .has_rank_address = !info.rank_address().empty(),
                  .unix_users = info.unix_users(),
                  .makeup = MakeupOf(info, std::nullopt)};
  std::set<std::string> taken;
  if (const auto here = held.find(info.name()); here != held.end()) {
    for (const v1::RankPlacement* place : here->second) {
      if (place->cuda_device().empty()) {
        --slots.cpu_free;
      } else {
        taken.insert(place->cuda_device());
      }
    }
  }
  if (!info.cuda_worker()) return slots;
  std::vector<const v1::GpuInfo*> free;
  for (const v1::GpuInfo& gpu : info.gpus()) {
    if (!gpu.fault().empty()) continue;
    ++slots.gpus_total;
    if (taken.contains(gpu.uuid())) {
      slots.gpus_held.push_back(gpu.uuid());
    } else {
      free.push_back(&gpu);
    }
  }
  std::ranges::stable_sort(free, std::greater<>(),
                           [](const v1::GpuInfo* gpu) { return gpu->free_bytes() >> 30; });
  for (const v1::GpuInfo* gpu : free) slots.gpus_free.push_back(gpu->uuid());
  return slots;
}

QueuedJob InQueue(const v1::StoredJob& job, bool any_gpu) {
  const v1::JobSpec& spec = job.job().spec();
  const v1::Device device = spec.runtime().device();
  const bool cuda = device == v1::DEVICE_CUDA || (device != v1::DEVICE_CPU && any_gpu);
  return {.id = job.job().id(),
          .priority = spec.priority(),
          .order = job.queued_unix_nanos(),
          .ranks = std::max(spec.resources().gpus(), 1),
          .nodes = std::max(spec.resources().nodes(), 1),
          .cuda = cuda,
          .has_unix_user = !job.job().unix_user().empty(),
          .name = job.job().name(),
          .demand = DemandOf(spec, cuda)};
}

}  // namespace nsa::server
