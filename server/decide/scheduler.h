// Decides which queued jobs get which slots. Pure. Takes the queue and the machines; returns
// placements, and for every other job the reason why it waits.
//
// Rules
//   - Order: higher priority first, then first come, first served.
//   - A gang gets all its slots or none. A rank takes one GPU or one CPU slot.
//   - resources.nodes machines share the ranks equally. With one, the default, a job is not split.
//     Several machines must be alike (machines/alike.h); the largest group of such machines that
//     has room is taken.
//   - A job goes to the machines with the fewest free slots that have room for it, so that whole
//     machines stay free for large jobs.
//   - Nobody overtakes: the first job that has to wait for busy slots of a kind (GPU, CPU) holds
//     back every later job of that kind. Large jobs therefore never starve; the price is that slots
//     stay idle while a large job waits. A job that could not run even on empty machines does not
//     hold back the others.
//   - Nothing is placed on a cordoned machine. A job that would fit only with cordoned machines
//     waits without holding back the others.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nsa/v1/fleet.pb.h"
#include "nsa/v1/store.pb.h"
#include "server/decide/machines/alike.h"

namespace nsa::server {

struct QueuedJob {
  std::string id;
  int32_t priority = 0;
  int64_t order = 0;  // when it entered the queue, e.g. in ns; ties keep the caller's order
  int32_t ranks = 1;
  int32_t nodes = 1;
  bool cuda = false;
  std::string name;  // for people
  Demand demand;     // of a job of several machines
};

struct NodeSlots {
  std::string name;
  int32_t cpu_free = 0;
  int32_t cpu_total = 0;
  std::vector<std::string> gpus_free;  // UUIDs; taken from the front
  int32_t gpus_total = 0;
  bool has_rank_address = false;  // else no job of several machines is placed here
  std::string cordon;  // why nothing is placed here, as CordonText(); empty: not cordoned
  Makeup makeup;
};

struct Placement {
  std::string job_id;
  std::vector<v1::RankPlacement> ranks;
};

struct Waiting {
  std::string job_id;
  // WAITING_FOR_SLOTS, BEHIND_ANOTHER_JOB, NO_NODES, UNPLACEABLE, CORDONED, WAITING_FOR_ALLOCATION
  std::string reason;
  std::string text;
};

struct QueuePlan {
  std::vector<Placement> placements;
  std::vector<Waiting> waiting;    // in queue order
  std::vector<std::string> order;  // every queued job, first in line first
};

// `nodes` are the machines that are ready.
QueuePlan Schedule(std::vector<QueuedJob> queue, std::vector<NodeSlots> nodes);

// A machine's slots without those that active jobs hold. GPUs with more free memory (in whole GiB)
// come first, since other programs may be using the rest. `cordon` and the clock of `makeup` are
// left empty.
NodeSlots FreeSlots(const v1::NodeInfo& info,
                    const std::vector<std::shared_ptr<const v1::StoredJob>>& active);

// A queued job as Schedule() sees it. `any_gpu`: a ready machine has a GPU, so a job that leaves
// its device open takes one.
QueuedJob InQueue(const v1::StoredJob& job, bool any_gpu);

// The same for one queued job that has machines of a cluster manager: it is placed on the machines
// of its allocation, once all of them are ready. `nodes` are those that are.
QueuePlan PlanAllocated(const v1::StoredJob& job, std::vector<NodeSlots> nodes);

}  // namespace nsa::server
