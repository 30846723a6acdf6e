// Why each queued job waits, and its position in the queue. Written by the reconciler at every
// tick, read when a job is shown.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "server/decide/scheduler.h"

namespace nsa::server {

// Thread-safe.
class QueueBoard {
 public:
  struct Place {
    int32_t position = 0;  // 1-based; 0 when not queued
    std::string reason;
    std::string text;
  };

  // Replaces the board. Returns the jobs whose text or position has changed.
  std::vector<std::string> Post(const QueuePlan& plan);
  Place PlaceOf(const std::string& job_id) const;

 private:
  mutable Mutex mutex_;
  std::map<std::string, Place> places_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nsa::server
