// Decides which queued jobs get which slots. Pure. Takes the queue and the machines; returns
// placements, and for every other job the reason why it waits. If jobs may be preempted, also which
// running jobs give way to which waiting ones (rule/preemption.h).
//
// Rules
//   - Order: higher priority first, then first come, first served; with fair shares, among equal
//     priorities the value of the label that has the fewest ranks first (rule/fair_share.h). Among
//     equal priorities a job to which others give way is first, so that it gets their slots.
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
//   - A job that may start with fewer ranks (restart.min_ranks) starts with the largest of those
//     numbers for which there is room, if there is none for all: on as few machines as possible, at
//     most resources.nodes, and with no more ranks on one than all of them would be. It waits for
//     all while other jobs give way to it.
//   - Nothing is placed on a cordoned machine. A job that would fit only with cordoned machines
//     waits without holding back the others.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/job/machine_attributes.h"
#include "nsa/v1/fleet.pb.h"
#include "nsa/v1/store.pb.h"
#include "server/decide/machines/alike.h"
#include "server/decide/rule/quota.h"

namespace nsa::server {

// `scheduling` and `quotas` of the configuration.
struct SchedulingPolicy {
  bool preempt = false;
  absl::Duration preempt_after = absl::Minutes(10);
  std::string fair_share_label;  // empty: first come, first served
  Quotas quotas;
};

struct QueuedJob {
  std::string id;
  int32_t priority = 0;
  int64_t order = 0;  // when it entered the queue, e.g. in ns; ties keep the caller's order
  int32_t ranks = 1;
  int32_t nodes = 1;
  std::vector<int32_t> fewer;  // other numbers of ranks with which it may start, the largest first
  bool cuda = false;
  bool has_unix_user = false;
  std::string name;          // human-readable
  std::string owner;         // sees the name
  Demand demand;             // of a multi-machine job
  Requirements required;     // resources.require
  std::string share;         // its value of SchedulingPolicy::fair_share_label
  bool may_preempt = false;  // running jobs may have to give way to it
};

struct NodeSlots {
  std::string name;
  int32_t cpu_free = 0;
  int32_t cpu_total = 0;
  std::vector<std::string> gpus_free;  // UUIDs; taken from the front
  std::vector<std::string> gpus_held;  // UUIDs of those that jobs hold, without faulty ones
  int32_t gpus_total = 0;
  bool has_rank_address = false;  // else no multi-machine job is placed here
  bool unix_users = false;        // no job without a Unix user is placed here
  std::string cordon;  // why nothing is placed here, as CordonText(); empty: not cordoned
  Makeup makeup;
  Attributes attributes;
};

// A job that holds slots, or that gave its slots up for another job and is in the queue. The views
// are borrowed.
struct RunningJob {
  struct Slot {
    std::string_view node;
    std::string_view gpu;  // UUID; empty: a CPU slot
  };
  std::string_view id;
  int32_t priority = 0;
  int64_t since = 0;              // when it entered its present state, in ns
  std::vector<Slot> slots;        // one for each rank
  bool may_give_way = false;      // else it keeps its slots until it ends
  bool leaving = false;           // it is giving its slots up already, for whatever reason
  std::string_view preempted_by;  // id of the job that it gives way to, or gave way to
};

// Ranks that are placed, by kind of slot (true: GPU) and by value of the label.
using Shares = std::map<std::pair<bool, std::string>, int64_t>;

// What Schedule() observes besides priorities. The default is first come, first served, and nobody
// gives way.
struct QueueRules {
  std::optional<Shares> shares;     // with fair shares: the ranks that are placed at present
  std::vector<RunningJob> running;  // jobs that may have to give way, or that have done so
  // Machines may still be missing, because this coordinator has just started. Then no job is
  // asked to give way, none starts with fewer ranks, and a job to which others gave way holds back
  // later ones even if it does not fit on the machines that are there.
  bool machines_missing = false;
};

struct Placement {
  std::string job_id;
  std::vector<v1::RankPlacement> ranks;
};

struct Waiting {
  std::string job_id;
  // WAITING_FOR_SLOTS, BEHIND_ANOTHER_JOB, NO_NODES, UNPLACEABLE, CORDONED, WAITING_FOR_ALLOCATION,
  // WAITING_FOR_QUOTA, or that of a Hold (queue/hold.h)
  std::string reason;
  std::string text;
};

// A running job that has to give way to a waiting one.
struct Preemption {
  std::string victim;   // id
  std::string waiting;  // id
};

struct QueuePlan {
  std::vector<Placement> placements;
  std::vector<Waiting> waiting;    // in queue order
  std::vector<std::string> order;  // every queued job, first in line first
  std::vector<Preemption> preemptions;
};

// `nodes` are the machines that are ready.
QueuePlan Schedule(const std::vector<QueuedJob>& queue, std::vector<NodeSlots> nodes,
                   const QueueRules& rules = {});

// The ranks of a job on each of its machines.
int32_t RanksPerNode(const QueuedJob& job);

// The free slots of a kind.
int32_t Free(const NodeSlots& node, bool cuda);

// Whether ranks of the job could be placed here if enough slots were free.
bool Usable(const QueuedJob& job, const NodeSlots& node);

// Groups of machines that can run ranks of the job together, as places in `nodes`, the largest
// first. For a single-machine job all of them.
std::vector<Group> GroupsFor(const QueuedJob& job, const std::vector<NodeSlots>& nodes);

// Places one job with all its ranks on the machines and takes their slots; nothing when too few
// machines have room.
std::optional<Placement> PlaceJob(const QueuedJob& job, std::vector<NodeSlots>* nodes);

// The slots that active jobs hold, by machine. Borrowed.
using HeldSlots = std::unordered_map<std::string_view, std::vector<const v1::RankPlacement*>>;
HeldSlots SlotsHeld(const std::vector<std::shared_ptr<const v1::StoredJob>>& active);

// A machine's slots without those that jobs hold. GPUs with more free memory (in whole GiB) come
// first, since other programs may be using the rest. `cordon` and the clock of `makeup` are left
// empty.
NodeSlots FreeSlots(const v1::NodeInfo& info, const HeldSlots& held);

// A queued job as Schedule() sees it. `any_gpu`: a ready machine has a GPU, so a job that leaves
// its device open takes one.
QueuedJob InQueue(const v1::StoredJob& job, bool any_gpu);

// The same for one queued job that has machines of a cluster manager: it is placed on the machines
// of its allocation, once all of them are ready. `nodes` are those that are; `silence`: why the
// cluster manager cannot be asked at present, empty if it answers.
QueuePlan PlanAllocated(const v1::StoredJob& job, std::vector<NodeSlots> nodes,
                        const std::string& silence = "");

}  // namespace nsa::server
