#include "server/web/trace_shelf.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace nsa::server {

TraceShelf::Trace TraceShelf::Add(Trace trace) {
  const MutexLock lock(&mutex_);
  last_id_ = std::max(trace.id, last_id_ + 1);
  trace.id = last_id_;
  traces_.push_back(trace);
  if (traces_.size() > kMostTraces) traces_.pop_front();
  return trace;
}

std::vector<TraceShelf::Trace> TraceShelf::Of(const std::string& job_id) const {
  const MutexLock lock(&mutex_);
  std::vector<Trace> found;
  std::copy_if(traces_.rbegin(), traces_.rend(), std::back_inserter(found),
               [&](const Trace& trace) { return trace.job_id == job_id; });
  return found;
}

absl::StatusOr<TraceShelf::Trace> TraceShelf::Find(const std::string& job_id, int64_t id) const {
  const MutexLock lock(&mutex_);
  const auto found = std::ranges::find_if(
      traces_, [&](const Trace& trace) { return trace.job_id == job_id && trace.id == id; });
  if (found != traces_.end()) return *found;
  return absl::NotFoundError(absl::StrCat("trace: ", id, " is not kept (the newest ", kMostTraces,
                                          " are, until the coordinator ends); record another"));
}

void TraceShelf::Forget(const std::string& job_id) {
  const MutexLock lock(&mutex_);
  std::erase_if(traces_, [&](const Trace& trace) { return trace.job_id == job_id; });
}

}  // namespace nsa::server
