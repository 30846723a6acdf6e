// Traces that were recorded for the page, in files without names: they vanish with this process.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/fd.h"
#include "common/base/mutex.h"

namespace nsa::server {

// Thread-safe.
class TraceShelf {
 public:
  static constexpr size_t kMostTraces = 4;  // of all jobs together; the oldest goes first
  static constexpr int64_t kMostBytes = int64_t{128} << 20;  // of one, compressed

  struct Trace {
    int64_t id = 0;  // Unix milliseconds of its end, made unique
    std::string job_id;
    std::string name;  // for the file: "demo-steps-121-123.json.gz"
    int64_t bytes = 0;
    std::shared_ptr<const Fd> file;  // a reader may keep it
  };

  // Keeps a trace whose `id` is the time now. Returns it with its final id.
  Trace Add(Trace trace);

  // Those of a job, the newest first.
  std::vector<Trace> Of(const std::string& job_id) const;

  // NotFound when there is none, or it is no longer kept.
  absl::StatusOr<Trace> Find(const std::string& job_id, int64_t id) const;

  // A job was deleted.
  void Forget(const std::string& job_id);

 private:
  mutable Mutex mutex_;
  std::deque<Trace> traces_ ABSL_GUARDED_BY(mutex_);  // by id
  int64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace nsa::server
