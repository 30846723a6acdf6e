// Which running jobs give way to a waiting job of higher priority (scheduling.preempt). Pure.
//
// A job that gives way is asked to end after the step in progress with a checkpoint, as at a drain,
// and goes back to its place in the queue. Its slots are for the job that it gave way to: nobody
// overtakes the first job in line (scheduler.h).
//
//   may preempt       a queued job that waits for busy slots, if every job before it for the same
//                     kind of slot gets its slots too. Not one whose start was refused: the next
//                     start might be refused again, and others would give way in vain. Not one with
//                     resources.provisioner, which waits for machines of its own.
//   gives way         a job of lower priority that has run for preempt_after_seconds since its last
//                     start, or that waits for a restart and so has no ranks. Never one that saves
//                     no checkpoints, that is stopping or moving, that has machines of a cluster
//                     manager, or a rank on a machine that is not ready.
//   which of them     those of the lowest priorities that suffice; then the fewest ranks; then
//                     those that started last. Nobody, if the waiting job would not fit even then.
//                     Slots that come free anyhow count first.
#pragma once

#include <vector>

#include "absl/time/time.h"
#include "nsa/v1/store.pb.h"
#include "server/decide/scheduler.h"

namespace nsa::server {

// Whether the job may have to give way at `now`, whatever its priority. `after`:
// preempt_after_seconds.
bool MayGiveWay(const v1::StoredJob& job, absl::Duration after, absl::Time now);

// A job as PlanPreemptions() sees it. The job is borrowed.
RunningJob RunningFor(const v1::StoredJob& job, absl::Duration after, absl::Time now);

// `waiting`: the jobs that wait for slots, in queue order. `nodes`: the machines that are ready,
// with what is free there now.
std::vector<Preemption> PlanPreemptions(const std::vector<const QueuedJob*>& waiting,
                                        std::vector<NodeSlots> nodes,
                                        const std::vector<RunningJob>& running);

}  // namespace nsa::server
