// Workers that agents report and the store does not know. A store that was restored from a backup
// does not know the jobs and starts that are younger than the backup, and a store that was made
// anew knows none. Such a worker may be the only holder of hours of training, so it is never killed
// at once.
//
// Under the same store it is asked to end with a checkpoint, and killed after kUnknownPatience.
// Where the workers of a machine were started under another store, somebody may have started the
// wrong one: they keep running until an operator drains the machine, and no rank is placed there.
#pragma once

#include <map>
#include <string>
#include <tuple>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "nsa/v1/fleet.pb.h"
#include "server/decide/rule/cordon.h"
#include "server/store/job_store.h"

namespace nsa::server {

constexpr absl::Duration kUnknownPatience = absl::Minutes(5);

// Thread-safe.
class UnknownWorkers {
 public:
  // Both are borrowed.
  UnknownWorkers(const JobStore& store, const Clock& clock) : store_(store), clock_(clock) {}

  // Whether the workers of a heartbeat were started under another store than this.
  bool AreOfAnotherStore(const v1::HeartbeatRequest& heartbeat) const;

  // Adds to the answer to a heartbeat what workers that the store does not know shall do, and logs
  // each of them once.
  void Answer(const v1::HeartbeatRequest& heartbeat, const Cordons& cordons,
              v1::HeartbeatResponse* response);

 private:
  using Key = std::tuple<std::string, int64_t, int32_t>;  // job, generation, rank
  using Asked = std::map<Key, absl::Duration>;  // monotonic time of the first request to end
  struct Node {
    std::string other_store;  // under which its workers were started
    bool ending = false;      // they are being ended
    Asked asked;
  };

  bool Knows(const v1::WorkerObservation& worker) const;
  v1::StopMode StopOf(const v1::HeartbeatRequest& heartbeat, const v1::WorkerObservation& worker,
                      const Asked& before, Asked* after);
  void AnswerOtherStore(const v1::HeartbeatRequest& heartbeat, const Cordons& cordons, Node* node,
                        v1::HeartbeatResponse* response) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const JobStore& store_;
  const Clock& clock_;
  Mutex mutex_;
  // By name: those with such workers.
  std::map<std::string, Node> nodes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nsa::server
