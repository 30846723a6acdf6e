#include "server/decide/queue/fit.h"

#include <algorithm>
#include <numeric>

#include "common/base/count.h"

namespace nsa::server {
namespace {

// Whether the machine may run ranks of the job, cordoned or not.
bool MayRun(const QueuedJob& job, const NodeSlots& node) {
  return Reaches(job, node) && HasUser(job, node) && Meets(job.required, node.attributes);
}

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

// Whether the job would fit with exactly its ranks if nothing else ran.
Limits::Fit FitOf(const QueuedJob& job, const std::vector<Pool>& pools) {
  Limits::Fit best = Limits::Fit::kNever;
  for (const Pool& pool : pools) {
    int32_t all = 0;
    int32_t usable = 0;
    for (const NodeSlots* node : pool) {
      if (!Suits(job, *node)) continue;
      ++all;
      if (node->cordon.empty()) ++usable;
    }
    if (usable >= job.nodes) return Limits::Fit::kRoom;
    if (all >= job.nodes) best = Limits::Fit::kOnlyCordoned;
  }
  return best;
}

}  // namespace

std::string Slots(int32_t count, bool cuda) { return Count(count, cuda ? "GPU" : "CPU slot"); }

int32_t Total(const NodeSlots& node, bool cuda) { return cuda ? node.gpus_total : node.cpu_total; }

int32_t Free(const NodeSlots& node, bool cuda) {
  return cuda ? static_cast<int32_t>(node.gpus_free.size()) : node.cpu_free;
}

bool Reaches(const QueuedJob& job, const NodeSlots& node) {
  return job.nodes == 1 || node.has_rank_address;
}

bool HasUser(const QueuedJob& job, const NodeSlots& node) {
  return job.has_unix_user || !node.unix_users;
}

bool Suits(const QueuedJob& job, const NodeSlots& node) {
  return MayRun(job, node) && Total(node, job.cuda) >= RanksPerNode(job);
}

bool Usable(const QueuedJob& job, const NodeSlots& node) {
  return node.cordon.empty() && MayRun(job, node);
}

int32_t RanksPerNode(const QueuedJob& job) { return (job.ranks + job.nodes - 1) / job.nodes; }

Kind KindOf(const QueuedJob& job) {
  return {job.ranks,           job.nodes,         job.cuda,  job.has_unix_user,
          job.demand.programs, job.demand.clocks, job.fewer, job.required};
}

std::vector<QueuedJob> SmallerStarts(const QueuedJob& job) {
  std::vector<QueuedJob> starts;
  const int32_t most = RanksPerNode(job);
  for (const int32_t ranks : job.fewer) {
    for (int32_t nodes = (ranks + most - 1) / most; nodes <= std::min(job.nodes, ranks); ++nodes) {
      const int32_t share = (ranks + nodes - 1) / nodes;
      if ((nodes - 1) * share >= ranks) continue;  // a machine would have no rank
      QueuedJob& start = starts.emplace_back(job);
      start.ranks = ranks;
      start.nodes = nodes;
      start.fewer.clear();
    }
  }
  return starts;
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

const std::vector<Pool>& Pools::For(const QueuedJob& job) {
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

Limits::Fit Limits::Of(const QueuedJob& job) {
  const auto [known, isnew] = known_.try_emplace(KindOf(job), Fit::kNever);
  if (isnew) known->second = Look(job);
  return known->second;
}

Limits::Fit Limits::Look(const QueuedJob& job) {
  Fit best = FitOf(job, pools_.For(job));
  for (const QueuedJob& start : SmallerStarts(job)) {
    if (best == Fit::kRoom) break;
    best = std::min(best, FitOf(start, pools_.For(start)));
  }
  return best;
}

std::optional<Placement> PlaceAll(const QueuedJob& job, Pools* pools) {
  for (const Pool& pool : pools->For(job)) {
    if (const Pool chosen = Choose(job, pool); !chosen.empty()) return Take(job, chosen);
  }
  return std::nullopt;
}

std::optional<Placement> PlaceFewer(const QueuedJob& job, Pools* pools) {
  for (const QueuedJob& start : SmallerStarts(job)) {
    if (auto placement = PlaceAll(start, pools)) return placement;
  }
  return std::nullopt;
}

std::optional<Placement> PlaceJob(const QueuedJob& job, std::vector<NodeSlots>* nodes) {
  Pools pools(*nodes);
  return PlaceAll(job, &pools);
}

}  // namespace nsa::server
