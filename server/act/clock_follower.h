// Notices when the machine's wall clock is set, and moves with it what is counted from stored
// times: how long ranks have run (limits.hours), the order of the queue, the deadlines of drains.
// Otherwise a step of hours would end every job with a time limit, and kill the ranks of a drained
// machine.
//
// The wall clock is compared with the monotonic one. Both go on over a restart of the coordinator,
// so a step between two of them is noticed as well; after a start of the machine the wall clock is
// believed.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "server/store/job_store.h"
#include "server/store/node/node_store.h"

namespace nsa::server {

// Used by one thread.
class ClockFollower {
 public:
  // All are borrowed. `boot_id`: of this start of the machine.
  ClockFollower(JobStore& store, NodeStore& nodes, const Clock& clock, std::string boot_id)
      : store_(store), nodes_(nodes), clock_(clock), boot_id_(std::move(boot_id)) {}

  // Call it often, and before times are judged. What it cannot store is tried again by the next
  // call.
  void Look();

  // The time by which stored times are judged: the wall clock as it goes on from where Look() saw
  // it, whatever it is set to meanwhile.
  absl::Time Now() const;

 private:
  JobStore& store_;
  NodeStore& nodes_;
  const Clock& clock_;
  const std::string boot_id_;
  absl::Time zero_ = absl::InfinitePast();  // the wall clock when the monotonic one began
  absl::Duration looked_;                   // monotonic
};

}  // namespace nsa::server
