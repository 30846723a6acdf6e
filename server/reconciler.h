// The one loop that makes jobs move: fleet + store → decisions → store. It looks several times a
// second and whenever it is woken; everything that agents should do follows from the store.
//
// It keeps nothing that matters: what it remembers (when a state was first seen, whether a hang is
// suspected) is found again after a restart.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "server/dump_broker.h"
#include "server/executor.h"
#include "server/fleet.h"
#include "server/gang.h"
#include "server/hang_policy.h"
#include "server/job_store.h"
#include "server/lifecycle.h"
#include "server/path_guard.h"
#include "server/queue_board.h"
#include "server/restart_policy.h"
#include "server/transition.h"

namespace nsa::server {

class Reconciler {
 public:
  struct Parts {  // all borrowed
    JobStore& store;
    Fleet& fleet;
    QueueBoard& board;
    DumpBroker& dumps;
    Executor& executor;
    const PathGuard& paths;
    const Clock& clock;
    std::filesystem::path dumps_dir;                         // stacks of hung jobs are written here
    std::function<void(const std::string& job_id)> changed;  // a job looks different now
    std::function<void()> looked;                            // after every look
  };

  explicit Reconciler(Parts parts);
  // Stops the loop.
  ~Reconciler();

  // Starts the loop.
  void Start();
  void Stop();

  // Look now.
  void Wake();

  // One look at everything. Called by the loop; by tests without it.
  void Tick();

 private:
  // What is remembered of a job between two looks.
  struct Memory {
    State state = v1::Job::STATE_UNSPECIFIED;
    int64_t generation = 0;
    bool ending = false;
    bool decided = false;
    int32_t restarts = 0;
    int32_t refusals = 0;
    absl::Duration since;  // monotonic: agents have been told this since then
    HangState hang;
    bool checking = false;  // preflight is running on the executor
    absl::Duration last_checkpoint;
  };

  // Starts of a job that were refused in a row. Forgotten with this process: then it is more
  // patient than it need be.
  struct Refusals {
    int32_t count = 0;
    absl::Duration since;       // monotonic: of the first
    int64_t progress_mark = 0;  // at which they were refused
    absl::Duration due;         // monotonic: of a queued job's next start
  };

  void Loop();
  void NoteStandstill();
  Memory& Remember(const v1::StoredJob& job);
  void Forget(const std::vector<JobPtr>& active);
  void Advance(const JobPtr& job);
  void AdvancePreflight(const JobPtr& job, Memory* memory);
  void AdvanceGang(const JobPtr& job, Memory* memory);
  void AdvanceRestarting(const JobPtr& job, Memory* memory);
  void AdvanceStopping(const JobPtr& job, Memory* memory);
  std::vector<RankView> RanksOf(const v1::StoredJob& job, const Memory& memory) const;
  void EndWell(const JobPtr& job, const GangVerdict& verdict);
  void WatchForHang(const JobPtr& job, const std::vector<RankView>& ranks, Memory* memory);
  void DumpHungJob(const JobPtr& job, const std::string& why);
  void Note(const JobPtr& job, const v1::JobEvent& event);
  void JudgeRestart(const JobPtr& job, const Failure& cause);
  void Postpone(const JobPtr& job, const Failure& cause);
  RestartHistory HistoryOf(const v1::StoredJob& job) const;
  Refusals RefusalsOf(const v1::Job& job) const;
  void NoteJudged(const v1::Job& job, const Failure& cause, absl::Duration delay);
  bool NodesAre(const v1::StoredJob& job, RankView::Node state, bool all) const;
  bool Measured(const std::vector<RankView>& ranks, absl::Duration waited) const;
  void CheckThenLaunch(const JobPtr& job, Happening passed, Memory* memory);
  void Launch(const JobPtr& job, Happening passed);
  void PlaceQueued(const std::vector<JobPtr>& active);
  void Move(const JobPtr& job, Happening happening, const Because& because);

  const Parts parts_;
  std::map<std::string, Memory> memory_;  // the loop's own
  int64_t looks_ = 0;                     // the loop's own
  absl::Duration looked_;                 // the loop's own: monotonic, when the last look began

  mutable Mutex mutex_;
  CondVar woken_;
  bool wake_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<std::string> checked_ ABSL_GUARDED_BY(mutex_);  // preflights that have ended
  std::map<std::string, Refusals> refusals_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace nsa::server
