#include "server/decide/scheduler.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/base/count.h"
#include "common/base/reason.h"
#include "server/decide/allocation/allocation.h"
#include "server/decide/lifecycle.h"

namespace nsa::server {
namespace {

int32_t Free(const NodeSlots& node, bool cuda) {
  return cuda ? static_cast<int32_t>(node.gpus_free.size()) : node.cpu_free;
}

int32_t Total(const NodeSlots& node, bool cuda) { return cuda ? node.gpus_total : node.cpu_total; }

// "2 GPUs", "1 CPU slot".
std::string Slots(int32_t count, bool cuda) { return Count(count, cuda ? "GPU" : "CPU slot"); }

int32_t RanksPerNode(const QueuedJob& job) { return (job.ranks + job.nodes - 1) / job.nodes; }

// Whether ranks of the job can reach ranks on other machines from here, if they have to.
bool Reaches(const QueuedJob& job, const NodeSlots& node) {
  return job.nodes == 1 || node.has_rank_address;
}

// Whether the machine has room for its share of the job's ranks if nothing else runs.
bool Suits(const QueuedJob& job, const NodeSlots& node) {
  return Reaches(job, node) && Total(node, job.cuda) >= RanksPerNode(job);
}

// Machines from which all those of a job are taken.
using Pool = std::vector<NodeSlots*>;

// All machines, for jobs of one; and the groups of machines that are alike.
class Pools {
 public:
  explicit Pools(std::vector<NodeSlots>& nodes) {
    for (NodeSlots& node : nodes) all_.front().push_back(&node);
  }

  const std::vector<Pool>& For(const QueuedJob& job) {
    if (job.nodes == 1) return all_;
    const std::tuple key(job.demand.cuda, job.demand.programs, job.demand.clocks);
    const auto [place, added] = alike_.try_emplace(key);
    if (added) {
      std::vector<Makeup> makeups;
      for (const NodeSlots* node : all_.front()) makeups.push_back(node->makeup);
      for (const Group& group : Groups(makeups, job.demand)) {
        Pool& pool = place->second.emplace_back();
        for (const size_t i : group) pool.push_back(all_.front()[i]);
      }
    }
    return place->second;
  }

 private:
  std::vector<Pool> all_{1};
  std::map<std::tuple<bool, bool, bool>, std::vector<Pool>> alike_;
};

// Whether the job would fit if nothing else ran, and with `all` if no machine were cordoned.
bool FitsEmptyNodes(const QueuedJob& job, const std::vector<Pool>& pools, bool all) {
  return std::ranges::any_of(pools, [&](const Pool& pool) {
    const auto fitting = std::ranges::count_if(pool, [&](const NodeSlots* node) {
      return (all || node->cordon.empty()) && Suits(job, *node);
    });
    return fitting >= job.nodes;
  });
}

// The machines of a pool for a job, those with the fewest free slots first. Nothing when too few
// have room.
std::optional<Pool> Choose(const QueuedJob& job, const Pool& pool) {
  Pool fitting;
  for (NodeSlots* node : pool) {
    const bool fits = Reaches(job, *node) && Free(*node, job.cuda) >= RanksPerNode(job);
    if (fits && node->cordon.empty()) fitting.push_back(node);
  }
  if (static_cast<int32_t>(fitting.size()) < job.nodes) return std::nullopt;
  std::ranges::sort(fitting, [&](const NodeSlots* a, const NodeSlots* b) {
    const int32_t free_a = Free(*a, job.cuda);
    const int32_t free_b = Free(*b, job.cuda);
    return free_a != free_b ? free_a < free_b : a->name < b->name;
  });
  fitting.resize(job.nodes);
  return fitting;
}

std::optional<Pool> Choose(const QueuedJob& job, const std::vector<Pool>& pools) {
  for (const Pool& pool : pools) {
    if (std::optional<Pool> chosen = Choose(job, pool)) return chosen;
  }
  return std::nullopt;
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

Waiting WaitsForSlots(const QueuedJob& job, const std::vector<NodeSlots>& nodes) {
  int32_t free = 0;
  for (const NodeSlots& node : nodes) {
    if (node.cordon.empty()) free += Free(node, job.cuda);
  }
  const std::string cordoned = CordonedText(nodes);
  const std::string differ = DifferencesFor(job, nodes).text;
  return {job.id, Word(Reason::kWaitingForSlots),
          absl::StrCat("needs ", Slots(job.ranks, job.cuda), ", ", free,
                       free == 1 ? " is free" : " are free", cordoned.empty() ? "" : "; ", cordoned,
                       differ.empty() ? "" : "; not all machines can work together: ", differ)};
}

}  // namespace

// Main path 3/7: schedule.
QueuePlan Schedule(std::vector<QueuedJob> queue, std::vector<NodeSlots> nodes) {
  std::ranges::stable_sort(queue, [](const QueuedJob& a, const QueuedJob& b) {
    return a.priority != b.priority ? a.priority > b.priority : a.order < b.order;
  });
  QueuePlan plan;
  const QueuedJob* first_waiting[2] = {};  // by kind: CPU, GPU
  Pools alike(nodes);
  for (const QueuedJob& job : queue) {
    plan.order.push_back(job.id);
    const std::vector<Pool>& pools = alike.For(job);
    if (!FitsEmptyNodes(job, pools, true)) {
      plan.waiting.push_back(Unplaceable(job, nodes));
    } else if (!FitsEmptyNodes(job, pools, false)) {
      plan.waiting.push_back(WaitsForCordons(job, nodes));
    } else if (const QueuedJob* ahead = first_waiting[job.cuda]; ahead != nullptr) {
      plan.waiting.push_back({job.id, Word(Reason::kBehindAnotherJob),
                              absl::StrCat("job ", ahead->name, " is first in line")});
    } else if (const auto chosen = Choose(job, pools)) {
      plan.placements.push_back(Take(job, *chosen));
    } else {
      plan.waiting.push_back(WaitsForSlots(job, nodes));
      first_waiting[job.cuda] = &job;
    }
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

NodeSlots FreeSlots(const v1::NodeInfo& info,
                    const std::vector<std::shared_ptr<const v1::StoredJob>>& active) {
  NodeSlots slots{.name = info.name(),
                  .cpu_free = info.cpu_slots(),
                  .cpu_total = info.cpu_slots(),
                  .has_rank_address = !info.rank_address().empty(),
                  .makeup = MakeupOf(info, std::nullopt)};
  std::set<std::string> taken;
  for (const auto& job : active) {
    if (!HoldsSlots(job->job().state())) continue;
    for (const v1::RankPlacement& place : job->placements()) {
      if (place.node() != info.name()) continue;
      if (place.cuda_device().empty()) {
        --slots.cpu_free;
      } else {
        taken.insert(place.cuda_device());
      }
    }
  }
  if (!info.cuda_worker()) return slots;
  std::vector<const v1::GpuInfo*> free;
  for (const v1::GpuInfo& gpu : info.gpus()) {
    if (!gpu.fault().empty()) continue;
    ++slots.gpus_total;
    if (!taken.contains(gpu.uuid())) free.push_back(&gpu);
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
          .name = job.job().name(),
          .demand = DemandOf(spec, cuda)};
}

}  // namespace nsa::server
