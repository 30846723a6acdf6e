// Whether a job fits on machines, and which it takes. Internal to the scheduler. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "server/decide/scheduler.h"

namespace nsa::server {

// "2 GPUs", "1 CPU slot".
std::string Slots(int32_t count, bool cuda);

// The slots of a kind, free or not.
int32_t Total(const NodeSlots& node, bool cuda);

// Whether ranks of the job can reach ranks on other machines from here, if they have to.
bool Reaches(const QueuedJob& job, const NodeSlots& node);

// Whether the machine knows as whom to run the job.
bool HasUser(const QueuedJob& job, const NodeSlots& node);

// Whether the machine has room for its share of the job's ranks if nothing else runs.
bool Suits(const QueuedJob& job, const NodeSlots& node);

// What must be equal for two jobs to fit on the same machines: both get the same answers below.
using Kind =
    std::tuple<int32_t, int32_t, bool, bool, bool, bool, std::vector<int32_t>, Requirements>;
Kind KindOf(const QueuedJob& job);

// The job with each of QueuedJob::fewer numbers of ranks, on as many machines as it may have then:
// the most ranks first, among equals the fewest machines. No machine has more ranks than it would
// have with all of them, and each has one at least.
std::vector<QueuedJob> SmallerStarts(const QueuedJob& job);

// Machines from which all those of a job are taken.
using Pool = std::vector<NodeSlots*>;

// The pools of jobs, remembered by what must be equal. `nodes` is borrowed and must not move.
class Pools {
 public:
  explicit Pools(std::vector<NodeSlots>& nodes) : nodes_(nodes) {}
  const std::vector<Pool>& For(const QueuedJob& job);

 private:
  std::vector<NodeSlots>& nodes_;
  std::map<std::tuple<bool, bool, bool, bool>, std::vector<Pool>> known_;
};

// Whether jobs would fit if nothing else ran, with all their ranks or, if they may, with fewer.
// Remembered by kind: a long queue holds many jobs of few kinds. `pools` is borrowed.
class Limits {
 public:
  enum class Fit { kRoom, kOnlyCordoned, kNever };

  explicit Limits(Pools* pools) : pools_(*pools) {}
  Fit Of(const QueuedJob& job);

 private:
  Fit Look(const QueuedJob& job);

  Pools& pools_;
  std::map<Kind, Fit> known_;
};

// Places the job with all its ranks in the first pool that has room, on the machines with the
// fewest free slots there, and takes their slots; nothing when no pool has room.
std::optional<Placement> PlaceAll(const QueuedJob& job, Pools* pools);

// The same with the first of SmallerStarts() for which there is room.
std::optional<Placement> PlaceFewer(const QueuedJob& job, Pools* pools);

}  // namespace nsa::server
