// Which queued jobs get which slots. Pure: queue × machines → placements, and for every job that
// has to wait, why.
//
// Rules
//   - Order: higher priority first, then first come, first served.
//   - A gang gets all its slots or none. A rank takes one GPU or one CPU slot.
//   - resources.nodes machines share the ranks equally; with one (the default) a job is never
//   split.
//   - The machine that is left with the fewest free slots takes the job, so that whole machines
//   stay
//     free for large ones.
//   - Nobody overtakes: the first job that has to wait for busy slots of a kind (GPU, CPU) holds
//     back every later job of that kind. Large jobs therefore never starve; the price is slots that
//     stay idle while a large job waits. A job that could not run even on empty machines does not
//     hold anybody back.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nsa/v1/fleet.pb.h"
#include "nsa/v1/store.pb.h"

namespace nsa::server {

struct QueuedJob {
  std::string id;
  int32_t priority = 0;
  int64_t order = 0;  // rises with the time of entering the queue; ties keep the caller's order
  int32_t ranks = 1;
  int32_t nodes = 1;
  bool cuda = false;
};

struct NodeSlots {
  std::string name;
  int32_t cpu_free = 0;
  int32_t cpu_total = 0;
  std::vector<std::string> gpus_free;  // UUIDs; taken from the front
  int32_t gpus_total = 0;
};

struct Placement {
  std::string job_id;
  std::vector<v1::RankPlacement> ranks;
};

struct Waiting {
  std::string job_id;
  std::string reason;  // WAITING_FOR_SLOTS, BEHIND_ANOTHER_JOB, NO_NODES, UNPLACEABLE
  std::string text;
};

struct QueuePlan {
  std::vector<Placement> placements;
  std::vector<Waiting> waiting;    // in queue order
  std::vector<std::string> order;  // every queued job, first in line first
};

// `nodes` are the machines that are ready.
QueuePlan Schedule(std::vector<QueuedJob> queue, std::vector<NodeSlots> nodes);

// A machine's slots, less those that active jobs hold. The GPU with the most free memory comes
// first (to the GiB), since programs that are not our jobs may use the others.
NodeSlots FreeSlots(const v1::NodeInfo& info,
                    const std::vector<std::shared_ptr<const v1::StoredJob>>& active);

// A queued job as Schedule() sees it. `any_gpu`: a job that leaves its device open takes a GPU.
QueuedJob InQueue(const v1::StoredJob& job, bool any_gpu);

}  // namespace nsa::server
