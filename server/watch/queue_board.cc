#include "server/watch/queue_board.h"

#include <utility>

namespace nsa::server {

std::vector<std::string> QueueBoard::Post(const QueuePlan& plan) {
  std::map<std::string, Place> places;
  int32_t position = 0;
  for (const std::string& id : plan.order) places[id].position = ++position;
  for (const Waiting& waiting : plan.waiting) {
    places[waiting.job_id].reason = waiting.reason;
    places[waiting.job_id].text = waiting.text;
  }
  std::vector<std::string> changed;
  MutexLock lock(&mutex_);
  for (const auto& [id, place] : places) {
    const auto before = places_.find(id);
    if (before == places_.end() || before->second.position != place.position ||
        before->second.text != place.text) {
      changed.push_back(id);
    }
  }
  places_ = std::move(places);
  return changed;
}

QueueBoard::Place QueueBoard::PlaceOf(const std::string& job_id) const {
  MutexLock lock(&mutex_);
  const auto place = places_.find(job_id);
  return place == places_.end() ? Place{} : place->second;
}

}  // namespace nsa::server
