// The machines and what runs on them, as heartbeats report it. Kept in memory only, apart from
// their names (node_store.h): after a restart the next heartbeats report everything again, and a
// known machine that has not sent one yet is *absent*. A machine that sends no heartbeats is first
// *unknown*, and *lost* only after a long time.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "nsa/v1/fleet.pb.h"
#include "nsa/v1/store.pb.h"
#include "server/decide/gang.h"
#include "server/decide/machines/clock_estimate.h"
#include "server/store/job_store.h"
#include "server/store/node/node_store.h"

namespace nsa::server {

struct NodeView {
  v1::NodeInfo info;
  RankView::Node state = RankView::Node::kUnknown;
  int64_t heartbeat_unix_nanos = 0;  // 0: absent, not heard since the coordinator started
  absl::Duration heard;  // monotonic time of the last heartbeat, or of the coordinator's start
  // The machine's clock minus the coordinator's; nothing if its agent does not report the time.
  // Differences between the machines of one Nodes() are not affected by steps of the coordinator's
  // clock.
  std::optional<absl::Duration> clock_offset;
  // The job store under which its ranks were started, if it is not this coordinator's. Such a
  // machine is UNKNOWN, and LOST in time: its heartbeats say nothing about ranks of this store.
  std::string other_store;
};

// The record of a step that a heartbeat shows should have arrived after this time.
inline constexpr absl::Duration kRecordPatience = absl::Seconds(30);

// Thread-safe. Nothing slow is done under the lock.
class Fleet {
 public:
  struct Limits {
    absl::Duration unknown = absl::Seconds(10);
    absl::Duration lost = absl::Seconds(300);
    absl::Duration forgotten = absl::Hours(1);  // never before `lost`
  };
  Fleet(const Clock& clock, Limits limits);

  // Records a heartbeat. FailedPrecondition where two agents use one name. Those of one machine (a
  // restarted agent, for example) may follow each other: the newer one is taken, and the older one
  // again once the newer one has been silent for Limits::unknown. An agent of another machine, such
  // as a copy of the first with its secret, is refused until that one has been silent for so long.
  // ResourceExhausted for one machine too many (common/base/limits.h).
  // `other_store`: the workers were started under another store than this coordinator's.
  absl::Status Observe(const v1::HeartbeatRequest& heartbeat, bool other_store = false);

  // Adds machines that an earlier coordinator knew: their silence begins now.
  void Remember(const KnownNodes& known);

  // Every machine that is not one of an allocation, for the next coordinator.
  KnownNodes Known() const;

  // The secret of this machine was revoked: it is dropped as soon as it is silent and no job is
  // placed on it.
  void NoteRevoked(const std::string& name);

  // Whether this agent of a machine is refused for the first time since one was accepted.
  bool NoteRefusal(const std::string& name, const std::string& incarnation);

  // Whether a machine has sent no heartbeat for Limits::unknown, or not since this start.
  bool IsSilent(const std::string& name) const;

  // By name.
  std::vector<NodeView> Nodes() const;
  std::optional<NodeView> Find(const std::string& name) const;

  // The ranks of a job's current generation. `told`: monotonic time at which agents were first told
  // the job's current desired state. Last records are not filled in.
  std::vector<RankView> Ranks(const v1::StoredJob& job, absl::Duration told) const;

  // The GPUs of a job's ranks as their machines last reported them.
  std::vector<v1::GpuInfo> GpusOf(const v1::StoredJob& job) const;

  // One rank's worker as the last heartbeat reported it; empty when it was not in it.
  std::optional<v1::WorkerObservation> Worker(const std::string& node, const std::string& job_id,
                                              int64_t generation, int32_t rank) const;

  // Forgets workers that no longer exist, except those of the current generations of these jobs.
  void Prune(const std::vector<JobPtr>& active);

  // The coordinator stood still and received nothing: silence before now does not count towards
  // `lost`. As after a start, machines are unknown until their next heartbeat.
  void ForgiveSilence();

  // When this object was made: the earliest time of a heartbeat.
  absl::Duration started() const { return started_; }

  // Drops the machines that have been silent for Limits::forgotten (revoked ones: for
  // Limits::unknown) and that none of these jobs is placed on, so that a host that was renamed or
  // removed is not reported as down for ever. A machine that comes back counts as new.
  void ForgetLost(const std::vector<JobPtr>& active);

  // Drops the machines of an allocation, which is over.
  void ForgetAllocation(const std::string& allocation_id);

  // Why this cluster manager cannot be asked at present, human-readable; empty: it answers. Returns
  // whether that is news.
  bool NoteSilentCluster(const std::string& provisioner, const std::string& why);
  std::string SilentCluster(const std::string& provisioner) const;

 private:
  using Key = std::tuple<std::string, int64_t, int32_t>;  // job, generation, rank
  struct Seen {
    v1::WorkerObservation worker;
    bool present = false;  // it was in the last heartbeat
    int64_t ended_unix_nanos = 0;
    int64_t steps_before = 0;        // done kRecordPatience to twice as long ago
    int64_t steps_middle = 0;        // done up to kRecordPatience ago
    absl::Duration middle_observed;  // monotonic
  };
  struct Node {
    v1::NodeInfo info;
    std::string incarnation;
    std::string replaced;  // the previous incarnation
    std::string refused;   // the last incarnation that was refused
    std::string boot_id;   // of the start of the machine
    bool revoked = false;
    absl::Duration heard;
    absl::Duration gpus_measured;
    std::string other_store;     // of its last heartbeat; empty: this one
    absl::Duration other_heard;  // with `other_store`: when that arrived
    int64_t heard_unix_nanos = 0;
    std::map<Key, Seen> workers;
    ClockEstimate clock;
  };

  static void NoteSteps(int64_t step, absl::Duration now, Seen* seen);
  absl::Status CheckIncarnation(const v1::HeartbeatRequest& heartbeat, const Node& node) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  RankView::Node StateOf(absl::Duration heard) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  RankView::Node StateOf(const Node& node) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `zero`: the coordinator's wall clock when its monotonic clock shows 0.
  NodeView ViewOf(const Node& node, absl::Duration zero) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Duration Zero() const;
  absl::Duration LastBeat(const Node& node) const { return std::max(node.heard, node.other_heard); }

  const Clock& clock_;
  const Limits limits_;
  const absl::Duration started_;
  mutable Mutex mutex_;
  // Silence counts towards `lost` from here on: before, the coordinator could receive nothing.
  absl::Duration listening_since_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Node> nodes_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> silent_clusters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nsa::server
