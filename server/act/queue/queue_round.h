// The reconciler's part for queued jobs: places those that can start, tells running jobs to give
// way, and says why the others wait.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "server/act/job_memory.h"
#include "server/decide/rule/cordon.h"
#include "server/decide/scheduler.h"
#include "server/store/fleet.h"
#include "server/store/job_store.h"
#include "server/watch/queue_board.h"

namespace nsa::server {

// Used by the reconciler's thread only.
class QueueRound {
 public:
  struct Parts {  // all borrowed
    JobStore& store;
    const Fleet& fleet;
    QueueBoard& board;
    const JobMemory& memory;
    const Clock& clock;
    SchedulingPolicy scheduling;
    std::function<void(const std::string& job_id)> changed;  // what is shown of a job has changed
  };

  explicit QueueRound(Parts parts) : parts_(std::move(parts)), started_(parts_.clock.Monotonic()) {}

  // One round. Whether a job has changed, so that there is something to do at once.
  bool Run(const std::vector<JobPtr>& active, const std::vector<NodeView>& nodes,
           const Cordons& cordons);

 private:
  std::vector<JobPtr> InLine(const std::vector<JobPtr>& active, QueuePlan* apart) const;
  QueuePlan Plan(const std::vector<JobPtr>& active, const std::vector<NodeView>& nodes,
                 const Cordons& cordons) const;
  QueueRules Rules(const std::vector<JobPtr>& active) const;
  void Place(const Placement& placement);
  void GiveWay(const JobPtr& victim, const JobPtr& waiting);

  const Parts parts_;
  const absl::Duration started_;  // monotonic
};

}  // namespace nsa::server
