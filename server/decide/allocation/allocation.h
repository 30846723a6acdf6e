// What happens next with the machines that a job gets from a cluster manager. Pure.
//
// A job with resources.provisioner has at most one allocation at a time, and the allocation serves
// one stay of the job on machines: it is asked for while the job is QUEUED, and given back in the
// same change of the store in which the job goes back into the queue or ends.
//
//   REQUESTED → PENDING → RUNNING → ENDING → ENDED
//
// ENDING can follow each of the first three. The cluster manager's own job has the name
// ClusterName(id), chosen before it is asked for, so that it is found again whenever the answer was
// lost.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "nsa/v1/job_status.pb.h"
#include "nsa/v1/store.pb.h"
#include "server/decide/gang.h"

namespace nsa::server {

// A job of the cluster manager, as it lists it.
struct ClusterJob {
  enum class Phase : uint8_t { kPending, kRunning, kCompleting, kEnded };
  // How an ended one ended.
  enum class End : uint8_t {
    kNone,
    kFinished,   // its script ended by itself, well or not
    kCancelled,  // by a user or an administrator
    kTaken,      // time limit, preemption, a node that failed: another try may do better
  };
  std::string number;  // the cluster manager's own
  std::string name;
  Phase phase = Phase::kPending;
  End end = End::kNone;
  std::string word;            // "PENDING"
  std::string reason;          // "Resources"; empty: none
  int64_t end_unix_nanos = 0;  // when it must end at the latest; 0: no limit, or not known
};

// "nsa-ab3…".
std::string ClusterName(const std::string& allocation_id);

// The id in such a name; empty for any other name.
std::string AllocationIdIn(const std::string& cluster_name);

// Whether it is asked for or used: REQUESTED, PENDING or RUNNING.
bool IsLive(const v1::Allocation& allocation);

// Whether the machines that the job is placed on are gone: its allocation is ENDING or ENDED.
bool MachinesAreOver(const v1::Job& job);

// "slurm-ab3…-0": the name under which the agent on the allocation's machine `index` joins.
std::string AllocatedNode(const v1::Allocation& allocation, int index);

// How many machines the job needs.
int MachinesOf(const v1::JobSpec& spec);

// Whether a new allocation should be asked for now.
bool WantsAllocation(const v1::StoredJob& job, absl::Time now);

// A live allocation becomes ENDING; any other stays as it is.
void EndAllocation(v1::Job* job);

// Ranks on machines that are over count as lost, except those that have been seen to end.
void LoseMachines(const v1::Job& job, std::vector<RankView>* ranks);

// Whether the job should checkpoint and stop because its allocation ends within
// restart.stop_grace_seconds.
bool EndsSoon(const v1::Job& job, absl::Time now);

// "PENDING (Resources)".
std::string TextOf(const ClusterJob& job);

// What to do for a live allocation.
struct AllocationStep {
  enum class Kind : uint8_t {
    kWait,       // nothing has changed
    kSubmit,     // ask the cluster manager: it knows no such job
    kFind,       // its listing has lost the job: ask what became of it
    kNote,       // store `job`: its number, state and end
    kCancelled,  // somebody cancelled it: stop the job
    kRefused,    // it ended before an agent came up: fail the job
    kLost,       // it is over: the job continues on another
  };
  Kind kind = Kind::kWait;
  ClusterJob job;  // with kNote, kCancelled, kRefused and kLost
};

// `seen`: the jobs of this name that the cluster manager lists.
AllocationStep NextStep(const v1::StoredJob& job, const std::vector<ClusterJob>& seen);

// The same for a job that the listing no longer has: `found` as the cluster manager remembers it,
// or nothing.
AllocationStep AfterFind(const v1::StoredJob& job, const std::optional<ClusterJob>& found);

// The jobs of this name that must be cancelled: all that have not begun to end if the allocation is
// over (`keep` empty), else all but the one with the number `keep`, or but the lowest number if
// `keep` is "*". More than one exist when a coordinator was killed while it asked.
std::vector<std::string> ToCancel(const std::vector<ClusterJob>& seen, const std::string& keep);

// Whether none of them is left that may still run something.
bool AllGone(const std::vector<ClusterJob>& seen);

// Fills in what the cluster manager says.
void NoteClusterJob(const ClusterJob& job, v1::Allocation* allocation);

}  // namespace nsa::server
