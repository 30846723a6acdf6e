#include "server/store/fleet.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"

namespace nsa::server {

Fleet::Fleet(const Clock& clock, Limits limits)
    : clock_(clock), limits_(limits), started_(clock.Monotonic()), listening_since_(started_) {}

absl::Status Fleet::Observe(const v1::HeartbeatRequest& heartbeat, bool other_store) {
  const std::string& name = heartbeat.node().name();
  if (name.empty()) return absl::InvalidArgumentError("node.name: empty; an agent needs a name");
  MutexLock lock(&mutex_);
  if (!nodes_.contains(name) && nodes_.size() >= limits::kNodes) {
    return absl::ResourceExhaustedError(absl::StrCat("nodes: ", nodes_.size(), " (at most ",
                                                     limits::kNodes,
                                                     "); end the agents of other machines"));
  }
  const absl::Duration now = clock_.Monotonic();
  Node& node = nodes_.try_emplace(name, Node{.heard = started_}).first->second;
  NSA_RETURN_IF_ERROR(CheckIncarnation(heartbeat, node));
  node.refused.clear();
  node.revoked = false;
  node.boot_id = heartbeat.boot_id();
  if (heartbeat.incarnation() != node.incarnation) {
    node.replaced = node.incarnation;
    node.incarnation = heartbeat.incarnation();
    node.clock = {};
  }
  node.info = heartbeat.node();
  node.heard_unix_nanos = absl::ToUnixNanos(clock_.Wall());
  node.other_store = other_store ? heartbeat.store_id() : "";
  if (other_store) {
    node.other_heard = now;
    return absl::OkStatus();
  }
  node.heard = now;
  node.clock.Add(heartbeat.node().unix_nanos(), node.heard);
  // Negative while the agent does not know its GPUs yet: then nothing was measured.
  const double age = heartbeat.node().gpus_age_seconds();
  node.gpus_measured = age >= 0 ? node.heard - absl::Seconds(age) : -absl::InfiniteDuration();
  for (auto& [key, seen] : node.workers) seen.present = false;
  for (const v1::WorkerObservation& worker : heartbeat.workers()) {
    Seen& seen = node.workers[{worker.job_id(), worker.generation(), worker.rank()}];
    const bool ended = worker.state() == v1::WorkerObservation::STATE_EXITED;
    if (ended && seen.ended_unix_nanos == 0) seen.ended_unix_nanos = node.heard_unix_nanos;
    NoteSteps(worker.step(), now, &seen);
    seen.worker = worker;
    seen.present = true;
  }
  return absl::OkStatus();
}

void Fleet::NoteSteps(int64_t step, absl::Duration now, Seen* seen) {
  if (now - seen->middle_observed < kRecordPatience) return;
  seen->steps_before = std::exchange(seen->steps_middle, step);
  seen->middle_observed = now;
}

absl::Status Fleet::CheckIncarnation(const v1::HeartbeatRequest& heartbeat,
                                     const Node& node) const {
  if (clock_.Monotonic() - LastBeat(node) >= limits_.unknown) return absl::OkStatus();
  const std::string& name = heartbeat.node().name();
  const std::string& boot_id = heartbeat.boot_id();
  if (!boot_id.empty() && !node.boot_id.empty() && boot_id != node.boot_id) {
    return absl::FailedPreconditionError(absl::StrCat(
        "node.name: ", name,
        " is another machine, which sends heartbeats. If this one is a copy of it: stop the agent "
        "here, remove node.secret from its state folder, set another node_name, and let it join "
        "with a token of its own (`nsactl token create --role agent`)"));
  }
  if (!node.replaced.empty() && heartbeat.incarnation() == node.replaced) {
    return absl::FailedPreconditionError(absl::StrCat(
        "node.name: ", name, " is also used by another agent; give one of them another node_name"));
  }
  return absl::OkStatus();
}

void Fleet::Remember(const KnownNodes& known) {
  MutexLock lock(&mutex_);
  for (const auto& [name, node] : known) {
    if (nodes_.size() >= limits::kNodes) return;
    Node& absent = nodes_.try_emplace(name, Node{.heard = started_}).first->second;
    absent.info.set_name(name);
    absent.boot_id = node.boot_id();
  }
}

KnownNodes Fleet::Known() const {
  MutexLock lock(&mutex_);
  KnownNodes known;
  for (const auto& [name, node] : nodes_) {
    if (node.info.allocation().empty()) known[name].set_boot_id(node.boot_id);
  }
  return known;
}

void Fleet::NoteRevoked(const std::string& name) {
  MutexLock lock(&mutex_);
  if (const auto node = nodes_.find(name); node != nodes_.end()) node->second.revoked = true;
}

bool Fleet::NoteRefusal(const std::string& name, const std::string& incarnation) {
  MutexLock lock(&mutex_);
  const auto node = nodes_.find(name);
  return node != nodes_.end() && std::exchange(node->second.refused, incarnation) != incarnation;
}

bool Fleet::IsSilent(const std::string& name) const {
  MutexLock lock(&mutex_);
  const auto node = nodes_.find(name);
  const absl::Duration heard = node == nodes_.end() ? started_ : LastBeat(node->second);
  return clock_.Monotonic() - heard >= limits_.unknown;
}

RankView::Node Fleet::StateOf(absl::Duration heard) const {
  const absl::Duration now = clock_.Monotonic();
  if (now - std::max(heard, listening_since_) >= limits_.lost) return RankView::Node::kLost;
  return now - heard >= limits_.unknown ? RankView::Node::kUnknown : RankView::Node::kReady;
}

RankView::Node Fleet::StateOf(const Node& node) const {
  const RankView::Node state = StateOf(node.heard);
  const bool says_nothing = node.heard_unix_nanos == 0 || !node.other_store.empty();
  const bool ready = state == RankView::Node::kReady;
  return ready && says_nothing ? RankView::Node::kUnknown : state;
}

void Fleet::ForgiveSilence() {
  MutexLock lock(&mutex_);
  listening_since_ = clock_.Monotonic();
}

absl::Duration Fleet::Zero() const {
  return clock_.Wall() - absl::UnixEpoch() - clock_.Monotonic();
}

NodeView Fleet::ViewOf(const Node& node, absl::Duration zero) const {
  NodeView view = {.info = node.info,
                   .state = StateOf(node),
                   .heartbeat_unix_nanos = node.heard_unix_nanos,
                   .heard = node.heard};
  if (const auto at_zero = node.clock.AtZero()) view.clock_offset = *at_zero - zero;
  const bool beats = clock_.Monotonic() - node.other_heard < limits_.unknown;
  if (beats) view.other_store = node.other_store;
  return view;
}

std::vector<NodeView> Fleet::Nodes() const {
  MutexLock lock(&mutex_);
  std::vector<NodeView> views;
  const absl::Duration zero = Zero();
  for (const auto& [name, node] : nodes_) views.push_back(ViewOf(node, zero));
  return views;
}

std::optional<NodeView> Fleet::Find(const std::string& name) const {
  MutexLock lock(&mutex_);
  const auto node = nodes_.find(name);
  if (node == nodes_.end()) return std::nullopt;
  return ViewOf(node->second, Zero());
}

std::vector<RankView> Fleet::Ranks(const v1::StoredJob& job, absl::Duration told) const {
  MutexLock lock(&mutex_);
  std::vector<RankView> views;
  for (const v1::RankPlacement& place : job.placements()) {
    RankView& view = views.emplace_back();
    view.rank = place.rank();
    view.node_name = place.node();
    const auto found = nodes_.find(place.node());
    if (found == nodes_.end()) {
      // No heartbeat since this coordinator started: unknown, and lost once that has lasted long
      // enough.
      const RankView::Node state = StateOf(started_);
      view.node = state == RankView::Node::kLost ? state : RankView::Node::kUnknown;
      view.silence = clock_.Monotonic() - started_;
      continue;
    }
    const Node& node = found->second;
    view.node = StateOf(node);
    view.silence = clock_.Monotonic() - node.heard;
    view.heard_since_told = node.heard > told;
    view.measured_since_told =
        (place.cuda_device().empty() ? node.heard : node.gpus_measured) > told;
    const auto seen = node.workers.find({job.job().id(), job.job().generation(), place.rank()});
    if (seen == node.workers.end()) continue;
    view.seen_before = true;
    if (!seen->second.present) continue;
    view.worker = seen->second.worker;
    view.steps_before = seen->second.steps_before;
    view.ended_unix_nanos = seen->second.ended_unix_nanos;
  }
  return views;
}

std::vector<v1::GpuInfo> Fleet::GpusOf(const v1::StoredJob& job) const {
  MutexLock lock(&mutex_);
  std::vector<v1::GpuInfo> gpus;
  for (const v1::RankPlacement& place : job.placements()) {
    const auto node = nodes_.find(place.node());
    if (node == nodes_.end()) continue;
    for (const v1::GpuInfo& gpu : node->second.info.gpus()) {
      if (!place.cuda_device().empty() && gpu.uuid() == place.cuda_device()) gpus.push_back(gpu);
    }
  }
  return gpus;
}

std::optional<v1::WorkerObservation> Fleet::Worker(const std::string& node,
                                                   const std::string& job_id, int64_t generation,
                                                   int32_t rank) const {
  MutexLock lock(&mutex_);
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return std::nullopt;
  const auto seen = found->second.workers.find({job_id, generation, rank});
  if (seen == found->second.workers.end() || !seen->second.present) return std::nullopt;
  return seen->second.worker;
}

void Fleet::Prune(const std::vector<JobPtr>& active) {
  std::map<std::string, int64_t> generations;
  for (const JobPtr& job : active) generations[job->job().id()] = job->job().generation();
  const auto is_current = [&](const Key& key) {
    const auto job = generations.find(std::get<0>(key));
    return job != generations.end() && std::get<1>(key) >= job->second;
  };
  MutexLock lock(&mutex_);
  for (auto& [name, node] : nodes_) {
    std::erase_if(node.workers, [&](const auto& entry) {
      return !entry.second.present && !is_current(entry.first);
    });
  }
}

void Fleet::ForgetLost(const std::vector<JobPtr>& active) {
  std::set<std::string> placed;
  for (const JobPtr& job : active) {
    for (const v1::RankPlacement& place : job->placements()) placed.insert(place.node());
  }
  const absl::Duration limit = std::max(limits_.forgotten, limits_.lost);
  MutexLock lock(&mutex_);
  std::erase_if(nodes_, [&](const auto& entry) {
    const Node& node = entry.second;
    const absl::Duration silence = clock_.Monotonic() - LastBeat(node);
    return silence >= (node.revoked ? limits_.unknown : limit) && !placed.contains(entry.first);
  });
}

void Fleet::ForgetAllocation(const std::string& allocation_id) {
  MutexLock lock(&mutex_);
  std::erase_if(nodes_,
                [&](const auto& entry) { return entry.second.info.allocation() == allocation_id; });
}

bool Fleet::NoteSilentCluster(const std::string& provisioner, const std::string& why) {
  MutexLock lock(&mutex_);
  return std::exchange(silent_clusters_[provisioner], why) != why;
}

std::string Fleet::SilentCluster(const std::string& provisioner) const {
  MutexLock lock(&mutex_);
  const auto found = silent_clusters_.find(provisioner);
  return found == silent_clusters_.end() ? "" : found->second;
}

}  // namespace nsa::server
