// Why each queued job waits, and its place in line: written by the reconciler at every look, read
// by whoever shows a job.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "server/scheduler.h"

namespace nsa::server {

// Thread-safe.
class QueueBoard {
 public:
  struct Place {
    int32_t position = 0;  // 1-based; 0 when not queued
    std::string reason;
    std::string text;
  };

  // Returns the jobs whose reason or place has changed.
  std::vector<std::string> Post(const QueuePlan& plan);
  Place PlaceOf(const std::string& job_id) const;

 private:
  mutable Mutex mutex_;
  std::map<std::string, Place> places_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nsa::server
