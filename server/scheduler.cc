#include "server/scheduler.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"

namespace nsa::server {
namespace {

int32_t Free(const NodeSlots& node, bool cuda) {
  return cuda ? static_cast<int32_t>(node.gpus_free.size()) : node.cpu_free;
}

int32_t Total(const NodeSlots& node, bool cuda) { return cuda ? node.gpus_total : node.cpu_total; }

const char* SlotName(bool cuda) { return cuda ? "GPUs" : "CPU slots"; }

int32_t RanksPerNode(const QueuedJob& job) { return (job.ranks + job.nodes - 1) / job.nodes; }

// The job would fit if nothing else ran.
bool FitsEmptyNodes(const QueuedJob& job, const std::vector<NodeSlots>& nodes) {
  const auto fitting = std::ranges::count_if(
      nodes, [&](const NodeSlots& node) { return Total(node, job.cuda) >= RanksPerNode(job); });
  return fitting >= job.nodes;
}

// The machines for a job, fullest first; nothing when too few have room.
std::optional<std::vector<NodeSlots*>> Choose(const QueuedJob& job, std::vector<NodeSlots>& nodes) {
  std::vector<NodeSlots*> fitting;
  for (NodeSlots& node : nodes) {
    if (Free(node, job.cuda) >= RanksPerNode(job)) fitting.push_back(&node);
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

Placement Take(const QueuedJob& job, const std::vector<NodeSlots*>& nodes) {
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

Waiting Unplaceable(const QueuedJob& job, const std::vector<NodeSlots>& nodes) {
  if (nodes.empty()) {
    return {job.id, "NO_NODES", "no machine is ready; `nsactl nodes` shows them"};
  }
  int32_t most = 0;
  for (const NodeSlots& node : nodes) most = std::max(most, Total(node, job.cuda));
  return {job.id, "UNPLACEABLE",
          absl::StrCat("needs ", RanksPerNode(job), " ", SlotName(job.cuda), " on each of ",
                       job.nodes, " machines; ", nodes.size(), " are ready, the largest has ", most,
                       ". Lower resources.gpus or add machines")};
}

Waiting WaitsForSlots(const QueuedJob& job, const std::vector<NodeSlots>& nodes) {
  int32_t free = 0;
  for (const NodeSlots& node : nodes) free += Free(node, job.cuda);
  return {job.id, "WAITING_FOR_SLOTS",
          absl::StrCat("needs ", job.ranks, " ", SlotName(job.cuda), ", ", free, " are free")};
}

}  // namespace

// Main path 3/7: schedule.
QueuePlan Schedule(std::vector<QueuedJob> queue, std::vector<NodeSlots> nodes) {
  std::ranges::stable_sort(queue, [](const QueuedJob& a, const QueuedJob& b) {
    return a.priority != b.priority ? a.priority > b.priority : a.order < b.order;
  });
  QueuePlan plan;
  std::string first_waiting[2];  // by kind: CPU, GPU
  for (const QueuedJob& job : queue) {
    plan.order.push_back(job.id);
    if (!FitsEmptyNodes(job, nodes)) {
      plan.waiting.push_back(Unplaceable(job, nodes));
    } else if (const std::string& ahead = first_waiting[job.cuda]; !ahead.empty()) {
      plan.waiting.push_back(
          {job.id, "BEHIND_ANOTHER_JOB", absl::StrCat("job ", ahead, " is first in line")});
    } else if (const auto chosen = Choose(job, nodes)) {
      plan.placements.push_back(Take(job, *chosen));
    } else {
      plan.waiting.push_back(WaitsForSlots(job, nodes));
      first_waiting[job.cuda] = job.id;
    }
  }
  return plan;
}

}  // namespace nsa::server
