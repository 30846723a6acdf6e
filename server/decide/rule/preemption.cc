#include "server/decide/rule/preemption.h"

#include <algorithm>
#include <array>
#include <set>
#include <tuple>

#include "common/base/reason.h"
#include "server/decide/lifecycle.h"
#include "server/decide/rule/cordon.h"

namespace nsa::server {
namespace {

using v1::Job;

// The usable slots that a job holds on one machine, by kind: CPU, GPU.
struct Part {
  size_t node = 0;
  std::array<int32_t, 2> slots = {};
};

// A job that may give way.
struct Candidate {
  const RunningJob* job = nullptr;
  std::vector<Part> parts;
  bool gave = false;  // chosen for a waiting job
  int32_t ranks() const { return static_cast<int32_t>(job->slots.size()); }
};

// Whom to spare first: high priority, then many ranks, then an early start.
bool SparedBefore(const Candidate* a, const Candidate* b) {
  const auto rank = [](const Candidate* one) {
    return std::tuple(-one->job->priority, -one->ranks(), one->job->since, one->job->id);
  };
  return rank(a) < rank(b);
}

int32_t RanksOf(const std::vector<Candidate*>& victims) {
  int32_t ranks = 0;
  for (const Candidate* victim : victims) ranks += victim->ranks();
  return ranks;
}

// How many machines of a group have room for a job if some others give way.
class Room {
 public:
  Room(const QueuedJob& job, const std::vector<NodeSlots>& nodes, const Group& group)
      : job_(job), free_(nodes.size(), kNotUsable) {
    for (const size_t i : group) {
      if (Usable(job, nodes[i])) free_[i] = Free(nodes[i], job.cuda);
      if (free_[i] >= RanksPerNode(job)) ++machines_;
    }
  }
  bool Fits() const { return machines_ >= job_.nodes; }
  void Add(const Candidate& other) { Change(other, 1); }
  void Remove(const Candidate& other) { Change(other, -1); }

 private:
  static constexpr int32_t kNotUsable = -1'000'000'000;

  void Change(const Candidate& other, int32_t sign) {
    const int32_t needed = RanksPerNode(job_);
    for (const Part& part : other.parts) {
      int32_t& free = free_[part.node];
      const bool before = free >= needed;
      free += sign * part.slots[job_.cuda];
      machines_ += static_cast<int32_t>(free >= needed) - static_cast<int32_t>(before);
    }
  }

  const QueuedJob& job_;
  std::vector<int32_t> free_;
  int32_t machines_ = 0;
};

// Jobs that would make room on one machine.
struct Offer {
  size_t node = 0;
  std::vector<Candidate*> victims;

  // Fewest ranks of the highest priority first, then fewest ranks, then late starts.
  std::tuple<int32_t, int32_t, int64_t, size_t> Cost(int32_t ceiling) const {
    int32_t highest = 0;
    int64_t earliest = INT64_MAX;
    for (const Candidate* victim : victims) {
      if (victim->job->priority == ceiling) highest += victim->ranks();
      earliest = std::min(earliest, victim->job->since);
    }
    return {highest, RanksOf(victims), -earliest, node};
  }
};

// Takes jobs that can stay out of `victims`; `enough` returns whether the rest suffices.
template <typename Leave, typename Enough, typename Return>
void Spare(Leave leave, Enough enough, Return give_back, std::vector<Candidate*>* victims) {
  std::ranges::sort(*victims, SparedBefore);
  std::erase_if(*victims, [&](Candidate* victim) {
    leave(*victim);
    if (enough()) return true;
    give_back(*victim);
    return false;
  });
}

class Planner {
 public:
  Planner(std::vector<NodeSlots> nodes, const std::vector<RunningJob>& running);

  // Counts the slots of jobs that give way to this one already as free.
  void ReturnSlotsFor(std::string_view waiting);
  // Counts the slots of all other jobs that are leaving as free.
  void ReturnOtherSlots(const std::set<std::string_view>& waiting);
  // Takes slots for the job. False if too few are free.
  bool Place(const QueuedJob& job) { return PlaceJob(job, &nodes_).has_value(); }
  // The jobs that give way so that this one fits, and their slots. Empty: it would not fit.
  std::vector<Candidate*> MakeRoom(const QueuedJob& job);

 private:
  size_t Find(std::string_view node) const {
    const auto found = index_.find(node);
    return found == index_.end() ? nodes_.size() : found->second;
  }
  void AddCandidate(const RunningJob& job);
  void ReturnSlots(const RunningJob& job);
  std::vector<Candidate*> MakeRoomIn(const QueuedJob& job, const Group& group);
  std::optional<int32_t> Ceiling(const QueuedJob& job, const Group& group);
  std::optional<Offer> OfferOf(const QueuedJob& job, size_t node, int32_t ceiling);

  std::vector<NodeSlots> nodes_;
  std::unordered_map<std::string_view, size_t> index_;
  std::vector<Candidate> candidates_;  // the lowest priority first
  std::vector<std::vector<Candidate*>> on_node_;
  std::vector<const RunningJob*> leaving_;
};

Planner::Planner(std::vector<NodeSlots> nodes, const std::vector<RunningJob>& running)
    : nodes_(std::move(nodes)), on_node_(nodes_.size()) {
  for (size_t i = 0; i < nodes_.size(); ++i) index_[nodes_[i].name] = i;
  for (const RunningJob& job : running) {
    if (job.leaving) leaving_.push_back(&job);
    if (job.may_give_way) AddCandidate(job);
  }
  std::ranges::stable_sort(candidates_, {}, [](const Candidate& c) { return c.job->priority; });
  for (Candidate& candidate : candidates_) {
    for (const Part& part : candidate.parts) on_node_[part.node].push_back(&candidate);
  }
}

void Planner::AddCandidate(const RunningJob& job) {
  Candidate candidate{.job = &job};
  for (const RunningJob::Slot& slot : job.slots) {
    const size_t node = Find(slot.node);
    // Nobody can tell its ranks to end.
    if (node == nodes_.size()) return;
    auto part = std::ranges::find(candidate.parts, node, &Part::node);
    if (part == candidate.parts.end()) part = candidate.parts.insert(part, Part{.node = node});
    const bool gpu = !slot.gpu.empty();
    // A GPU that is taken out is no slot afterwards.
    const auto& held = nodes_[node].gpus_held;
    if (!gpu || std::ranges::find(held, slot.gpu) != held.end()) ++part->slots[gpu];
  }
  candidates_.push_back(std::move(candidate));
}

void Planner::ReturnSlots(const RunningJob& job) {
  for (const RunningJob::Slot& slot : job.slots) {
    const size_t i = Find(slot.node);
    if (i == nodes_.size()) continue;
    NodeSlots& node = nodes_[i];
    if (slot.gpu.empty()) {
      ++node.cpu_free;
    } else if (const auto held = std::ranges::find(node.gpus_held, slot.gpu);
               held != node.gpus_held.end()) {
      node.gpus_held.erase(held);
      node.gpus_free.emplace_back(slot.gpu);
    }
  }
}

void Planner::ReturnSlotsFor(std::string_view waiting) {
  for (const RunningJob* job : leaving_) {
    if (job->preempted_by == waiting) ReturnSlots(*job);
  }
}

void Planner::ReturnOtherSlots(const std::set<std::string_view>& waiting) {
  for (const RunningJob* job : leaving_) {
    if (!waiting.contains(job->preempted_by)) ReturnSlots(*job);
  }
}

// The lowest priority for which the job fits if everybody up to that priority gives way.
std::optional<int32_t> Planner::Ceiling(const QueuedJob& job, const Group& group) {
  Room room(job, nodes_, group);
  for (const Candidate& candidate : candidates_) {
    if (candidate.job->priority >= job.priority) break;
    if (candidate.gave) continue;
    room.Add(candidate);
    if (room.Fits()) return candidate.job->priority;
  }
  return std::nullopt;
}

// Nothing if there is no room even if everybody up to `ceiling` gives way.
std::optional<Offer> Planner::OfferOf(const QueuedJob& job, size_t node, int32_t ceiling) {
  if (!Usable(job, nodes_[node])) return std::nullopt;
  const auto here = [&](const Candidate& candidate) {
    return std::ranges::find(candidate.parts, node, &Part::node)->slots[job.cuda];
  };
  const int32_t needed = RanksPerNode(job);
  int32_t free = Free(nodes_[node], job.cuda);
  Offer offer{.node = node};
  if (free >= needed) return offer;
  for (Candidate* candidate : on_node_[node]) {
    if (candidate->gave || candidate->job->priority > ceiling || here(*candidate) == 0) continue;
    offer.victims.push_back(candidate);
    free += here(*candidate);
  }
  if (free < needed) return std::nullopt;
  const std::vector<Candidate*> all = offer.victims;
  Spare([&](const Candidate& one) { free -= here(one); }, [&] { return free >= needed; },
        [&](const Candidate& one) { free += here(one); }, &offer.victims);
  // One alone may have fewer ranks than several that were left over.
  const int32_t missing = needed - Free(nodes_[node], job.cuda);
  for (Candidate* one : all) {
    if (here(*one) >= missing && one->ranks() < RanksOf(offer.victims)) offer.victims = {one};
  }
  return offer;
}

// The machines of a multi-machine job must be alike: the first group in which it would fit.
std::vector<Candidate*> Planner::MakeRoom(const QueuedJob& job) {
  for (const Group& group : GroupsFor(job, nodes_)) {
    std::vector<Candidate*> victims = MakeRoomIn(job, group);
    if (!victims.empty()) return victims;
  }
  return {};
}

std::vector<Candidate*> Planner::MakeRoomIn(const QueuedJob& job, const Group& group) {
  const std::optional<int32_t> ceiling = Ceiling(job, group);
  if (!ceiling.has_value()) return {};
  std::vector<Offer> offers;
  for (const size_t node : group) {
    if (auto offer = OfferOf(job, node, *ceiling)) offers.push_back(*std::move(offer));
  }
  if (static_cast<int32_t>(offers.size()) < job.nodes) return {};
  std::ranges::partial_sort(offers, offers.begin() + job.nodes, {},
                            [&](const Offer& offer) { return offer.Cost(*ceiling); });
  offers.resize(job.nodes);
  std::set<Candidate*> together;
  for (const Offer& offer : offers) together.insert(offer.victims.begin(), offer.victims.end());
  std::vector<Candidate*> victims(together.begin(), together.end());
  // A job on several machines may make others dispensable.
  Room room(job, nodes_, group);
  for (const Candidate* victim : victims) room.Add(*victim);
  Spare([&](const Candidate& one) { room.Remove(one); }, [&] { return room.Fits(); },
        [&](const Candidate& one) { room.Add(one); }, &victims);
  for (Candidate* victim : victims) {
    victim->gave = true;
    ReturnSlots(*victim->job);
  }
  return victims;
}

// Its ranks were asked to end, or are being killed, and do not start again on their slots.
bool IsLeaving(const v1::StoredJob& job) {
  const Job::State state = job.job().state();
  if (!HoldsSlots(state)) return false;
  const bool killed = state == Job::STATE_RESTARTING && !job.restart_decided() &&
                      ReasonFromWord(job.job().reason()) == Reason::kMoving;
  return killed || state == Job::STATE_STOPPING || IsMoving(job) || !job.preempted_by().empty();
}

}  // namespace

bool MayGiveWay(const v1::StoredJob& job, absl::Duration after, absl::Time now) {
  const v1::JobSpec& spec = job.job().spec();
  if (spec.train().save_every() <= 0 || !spec.resources().provisioner().empty()) return false;
  if (!job.preempted_by().empty()) return false;
  if (job.job().state() == Job::STATE_RESTARTING) return job.restart_decided();
  return job.job().state() == Job::STATE_RUNNING &&
         now - absl::FromUnixNanos(job.state_unix_nanos()) >= after;
}

RunningJob RunningFor(const v1::StoredJob& job, absl::Duration after, absl::Time now) {
  RunningJob running{.id = job.job().id(),
                     .priority = job.job().spec().priority(),
                     .since = job.state_unix_nanos(),
                     .may_give_way = MayGiveWay(job, after, now),
                     .leaving = IsLeaving(job),
                     .preempted_by = job.preempted_by()};
  for (const v1::RankPlacement& place : job.placements()) {
    running.slots.push_back({place.node(), place.cuda_device()});
  }
  return running;
}

std::vector<Preemption> PlanPreemptions(const std::vector<const QueuedJob*>& waiting,
                                        std::vector<NodeSlots> nodes,
                                        const std::vector<RunningJob>& running) {
  std::vector<Preemption> plan;
  const auto may = [](const QueuedJob* job) { return job->may_preempt; };
  if (running.empty() || std::ranges::none_of(waiting, may)) return plan;
  Planner planner(std::move(nodes), running);
  std::set<std::string_view> ids;
  for (const QueuedJob* job : waiting) ids.insert(job->id);
  planner.ReturnOtherSlots(ids);
  bool closed[2] = {};  // by kind: a job before has to wait
  for (const QueuedJob* job : waiting) {
    if (closed[job->cuda]) continue;
    planner.ReturnSlotsFor(job->id);
    if (planner.Place(*job)) continue;
    std::vector<Candidate*> victims;
    if (job->may_preempt) victims = planner.MakeRoom(*job);
    if (victims.empty() || !planner.Place(*job)) {
      closed[job->cuda] = true;
      continue;
    }
    for (const Candidate* victim : victims) {
      plan.push_back({.victim = std::string(victim->job->id), .waiting = job->id});
    }
  }
  return plan;
}

}  // namespace nsa::server
