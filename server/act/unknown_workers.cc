#include "server/act/unknown_workers.h"

#include <utility>

#include "common/base/clean_text.h"
#include "spdlog/spdlog.h"

namespace nsa::server {
namespace {

bool HasEnded(const v1::WorkerObservation& worker) {
  return worker.state() == v1::WorkerObservation::STATE_EXITED;
}

void Add(const v1::WorkerObservation& worker, v1::StopMode mode, v1::HeartbeatResponse* response) {
  v1::UnknownWorker* unknown = response->add_unknown();
  unknown->set_job_id(worker.job_id());
  unknown->set_generation(worker.generation());
  unknown->set_rank(worker.rank());
  unknown->mutable_stop()->set_mode(mode);
}

// What a drain demands of the ranks that are still there.
v1::StopMode StopOfDrain(const std::string& node, const Cordons& cordons, absl::Time now) {
  switch (DemandOf(node, cordons, now)) {
    case Leave::Kind::kStay:
    case Leave::Kind::kNoStart:
      return v1::STOP_MODE_UNSPECIFIED;
    case Leave::Kind::kMove:
      return v1::STOP_MODE_GRACEFUL;
    case Leave::Kind::kMoveNow:
      return v1::STOP_MODE_NOW;
  }
  return v1::STOP_MODE_UNSPECIFIED;
}

}  // namespace

bool UnknownWorkers::AreOfAnotherStore(const v1::HeartbeatRequest& heartbeat) const {
  return !heartbeat.store_id().empty() && heartbeat.store_id() != store_.id();
}

bool UnknownWorkers::Knows(const v1::WorkerObservation& worker) const {
  const auto job = store_.Find(worker.job_id());
  return job.ok() && (*job)->job().id() == worker.job_id() &&
         worker.generation() <= (*job)->job().generation();
}

v1::StopMode UnknownWorkers::StopOf(const v1::HeartbeatRequest& heartbeat,
                                    const v1::WorkerObservation& worker, const Asked& before,
                                    Asked* after) {
  const Key key = {worker.job_id(), worker.generation(), worker.rank()};
  const absl::Duration now = clock_.Monotonic();
  const auto asked = before.find(key);
  const absl::Duration since = asked == before.end() ? now : asked->second;
  after->emplace(key, since);
  if (asked == before.end()) {
    spdlog::warn(
        "node {}: job {} generation {} rank {} is not known to store {} (restored from a backup?): "
        "it is asked to end with a checkpoint, and killed in {}",
        heartbeat.node().name(), CleanLine(worker.job_id()), worker.generation(), worker.rank(),
        store_.id(), absl::FormatDuration(kUnknownPatience));
  }
  return now - since >= kUnknownPatience ? v1::STOP_MODE_NOW : v1::STOP_MODE_GRACEFUL;
}

void UnknownWorkers::AnswerOtherStore(const v1::HeartbeatRequest& heartbeat, const Cordons& cordons,
                                      Node* node, v1::HeartbeatResponse* response) {
  const std::string& name = heartbeat.node().name();
  if (std::exchange(node->other_store, heartbeat.store_id()) != heartbeat.store_id()) {
    spdlog::warn(
        "node {}: its {} worker(s) were started under store {}, and this coordinator has store {}: "
        "they keep running, and no rank is placed there. Put the right store back, or end them "
        "with a checkpoint: nsactl node drain {}",
        name, heartbeat.workers_size(), CleanLine(heartbeat.store_id()), store_.id(), name);
  }
  const v1::StopMode mode = StopOfDrain(name, cordons, clock_.Wall());
  const bool ending = mode != v1::STOP_MODE_UNSPECIFIED;
  if (ending && !std::exchange(node->ending, ending)) {
    spdlog::info("node {}: ending the workers of store {}, because it is drained", name,
                 CleanLine(heartbeat.store_id()));
  }
  if (!ending) return;
  for (const v1::WorkerObservation& worker : heartbeat.workers()) Add(worker, mode, response);
}

void UnknownWorkers::Answer(const v1::HeartbeatRequest& heartbeat, const Cordons& cordons,
                            v1::HeartbeatResponse* response) {
  const MutexLock lock(&mutex_);
  if (AreOfAnotherStore(heartbeat)) {
    AnswerOtherStore(heartbeat, cordons, &nodes_[heartbeat.node().name()], response);
    return;
  }
  const auto known = nodes_.find(heartbeat.node().name());
  const Asked before = known == nodes_.end() ? Asked() : std::move(known->second.asked);
  Asked asked;  // those that are still there
  for (const v1::WorkerObservation& worker : heartbeat.workers()) {
    if (HasEnded(worker) || Knows(worker)) continue;
    Add(worker, StopOf(heartbeat, worker, before, &asked), response);
  }
  if (known != nodes_.end()) nodes_.erase(known);
  if (!asked.empty()) nodes_[heartbeat.node().name()].asked = std::move(asked);
}

}  // namespace nsa::server
