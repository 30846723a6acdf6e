// Passes stack dumps from agents to callers. The reply to a heartbeat carries the request, and
// ReportDump the result. A caller waits for a bounded time and gets the dumps that have arrived,
// with an error for each rank that did not answer.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "nsa/v1/coordinator.pb.h"
#include "nsa/v1/fleet.pb.h"
#include "nsa/v1/store.pb.h"

namespace nsa::server {

// Thread-safe. `Done` is called exactly once, without a lock, from Report() or Expire().
class DumpBroker {
 public:
  using Done = std::function<void(std::vector<v1::StackDump>)>;

  explicit DumpBroker(const Clock& clock) : clock_(clock) {}

  // Asks for dumps of these ranks of the job's current generation. Waits at most `patience`.
  void Request(const v1::Job& job, const std::vector<v1::RankPlacement>& ranks,
               absl::Duration patience, Done done);

  // The dumps that a machine should take now. A request is repeated until its result is reported;
  // agents take each dump id once.
  std::vector<v1::DumpRequest> Wanted(const std::string& node) const;

  // Takes the result of a dump. NotFound when nobody waits for it.
  absl::Status Report(const v1::ReportDumpRequest& report);

  // Answers the requests whose deadline has passed. Called regularly.
  void Expire();

 private:
  struct Wish {
    v1::DumpRequest request;
    std::string node;
    bool answered = false;
    v1::StackDump dump;
  };
  struct Group {
    absl::Duration deadline;  // monotonic
    absl::Duration patience;
    std::vector<Wish> wishes;
    Done done;
  };
  static std::vector<v1::StackDump> Collect(const Group& group);

  const Clock& clock_;
  mutable Mutex mutex_;
  int64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<int64_t, Group> groups_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nsa::server
