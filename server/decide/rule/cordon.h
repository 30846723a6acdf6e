// Machines on which no rank is placed, and the jobs that have to leave them. Pure.
//
// A machine that is cordoned keeps the ranks that run on it. A drained machine is cordoned too, and
// the jobs that run there move: their ranks end after the step in progress with a checkpoint, and
// the job goes back into the queue. After the deadline of a drain the ranks are killed.
#pragma once

#include <map>
#include <string>

#include "absl/time/time.h"
#include "nsa/v1/node.pb.h"
#include "nsa/v1/store.pb.h"

namespace nsa::server {

// By name of the machine.
using Cordons = std::map<std::string, v1::NodeCordon>;

// Whether a job may stay on the machines that it is placed on.
struct Leave {
  enum class Kind {
    kStay,
    kNoStart,  // a machine is cordoned: ranks that run may go on, but none is started there
    kMove,     // a machine is drained
    kMoveNow,  // the deadline of a drain has passed
  };
  Kind kind = Kind::kStay;
  std::string why;  // human-readable: "gpu-3 is drained by alice (new kernel)"
};

// What the ranks on one machine have to do.
Leave::Kind DemandOf(const std::string& node, const Cordons& cordons, absl::Time now);

// The strongest demand of all machines of the job's placement.
Leave LeaveOf(const v1::StoredJob& job, const Cordons& cordons, absl::Time now);

// Whether the job's ranks are being ended because of a drain, or because it gives way to another
// job (preemption.h): RESTARTING with ranks that were asked to end after the step in progress.
bool IsMoving(const v1::StoredJob& job);

}  // namespace nsa::server
