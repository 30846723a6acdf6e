// The loop that moves jobs from state to state. Several times a second, and whenever it is woken,
// it gathers what is known of each job (store, fleet, memory), asks Next() what to do and does it.
// What agents should do is derived from the store alone.
//
// It has no state that must survive a restart: what it remembers (when a state was first seen,
// whether a hang is suspected) is built up again.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/act/clock_follower.h"
#include "server/act/dump_broker.h"
#include "server/act/executor.h"
#include "server/act/job_memory.h"
#include "server/act/path_guard.h"
#include "server/act/profile/profile_broker.h"
#include "server/act/queue/queue_round.h"
#include "server/decide/next_action.h"
#include "server/decide/scheduler.h"
#include "server/store/fleet.h"
#include "server/store/job_store.h"
#include "server/store/node/node_store.h"
#include "server/store/stack_store.h"
#include "server/watch/queue_board.h"

namespace nsa::server {

class Reconciler {
 public:
  struct Parts {  // all borrowed
    JobStore& store;
    Fleet& fleet;
    NodeStore& nodes;
    QueueBoard& board;
    DumpBroker& dumps;
    ProfileBroker& profiles;
    Executor& executor;
    const PathGuard& paths;
    const Clock& clock;
    std::string boot_id;  // of this start of the machine
    StackStore& stacks;
    SchedulingPolicy scheduling;
    std::function<void(const std::string& job_id)> changed;  // what is shown of a job has changed
    std::function<void()> after_tick;
  };

  explicit Reconciler(Parts parts);
  // Stops the loop.
  ~Reconciler();

  // Starts the loop.
  void Start();
  void Stop();

  // Makes the next tick come at once (at most one every 20 ms).
  void Wake();

  // Decides and acts once for every job. Called by the loop, and by tests without it.
  void Tick();

 private:
  void Loop();
  void NoteStandstill();
  void Forget(const std::vector<JobPtr>& active);
  void NoteGpuFaults(const std::vector<JobPtr>& active, const std::vector<NodeView>& nodes);

  // Gather.
  JobFacts FactsOf(const v1::StoredJob& job);
  void AddJournals(JobFacts* facts);
  std::string PreemptorOf(const v1::StoredJob& job) const;

  // Act.
  void Act(const JobPtr& job, const Action& action);
  void Do(const JobPtr& /*job*/, const action::Wait& /*wait*/) {}
  void Do(const JobPtr& job, const action::Move& move);
  void Do(const JobPtr& job, const action::CheckLaunch& check);
  void Do(const JobPtr& job, const action::DumpStacks& dump);
  void Do(const JobPtr& job, const action::SaveStacks& save);
  void Do(const JobPtr& job, const action::EndSuspicion& end);
  void Do(const JobPtr& job, const action::Restart& restart);
  void Do(const JobPtr& job, const action::PostponeStart& postpone);
  void SaveStacks(const JobPtr& job, const std::string& why);
  void AddEvent(const JobPtr& job, const v1::JobEvent& event);

  const Parts parts_;
  JobMemory memory_;
  QueueRound queue_;
  ClockFollower clock_follower_;  // used by the loop only
  Cordons cordons_;               // used by the loop only: as they were when the tick began
  int64_t ticks_ = 0;             // used by the loop only
  absl::Duration last_tick_;      // used by the loop only: monotonic, when the last tick began

  Mutex mutex_;
  CondVar woken_;
  bool wake_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace nsa::server
