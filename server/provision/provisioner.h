// Gets machines of a cluster manager for jobs with resources.provisioner, and gives them back.
//
// Every two seconds it compares three lists: the jobs that have not ended, what the cluster manager
// lists, and the folders of allocations (allocation_folder.h). It asks for what is missing, notes
// what has changed, and gives back whatever no job holds: it cancels the request, and once nothing
// of it runs, takes the secrets of its agents away, removes its folder and forgets its machines. It
// keeps nothing in memory that a restart would lose, so a coordinator that was killed anywhere in
// between goes on where it was:
//
//   killed after                     then
//   the folder was made              no job holds it: it is removed
//   the request is in the store      the listing is searched for its name; asked for if it is not
//   there sbatch has begun, or answered    the name is found; two of one name: the later one is
//   cancelled the job ended (ENDING)           cancelled again, until nothing runs ENDED is in the
//   store            the folder is removed
//
// Nothing is decided while the cluster manager does not answer.
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
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/provision/allocation_folder.h"
#include "server/provision/cluster.h"
#include "server/store/access_store.h"
#include "server/store/fleet.h"
#include "server/store/job_store.h"

namespace nsa::server {

class Provisioner {
 public:
  struct Parts {       // all borrowed
    std::string name;  // resources.provisioner
    std::filesystem::path shared_dir;
    Cluster& cluster;
    JobStore& store;
    AccessStore& access;
    Fleet& fleet;
    const Clock& clock;
    std::function<void()> changed;  // wakes the reconciler
  };

  explicit Provisioner(Parts parts) : parts_(std::move(parts)) {}
  ~Provisioner() { Stop(); }

  void Start();
  // Waits for the pass in progress.
  void Stop();

  // Compares and acts once. Called by the thread, and by tests without it.
  void Pass();

 private:
  using Listing = std::map<std::string, std::vector<ClusterJob>>;  // by allocation id

  void Loop();
  // For one job that has not ended.
  absl::Status Tend(const JobPtr& job, const Listing& listing);
  absl::Status Request(const JobPtr& job);
  absl::Status Submit(const JobPtr& job);
  absl::Status Do(const JobPtr& job, const AllocationStep& step);
  absl::Status CancelDoubles(const v1::Allocation& allocation, const Listing& listing);
  absl::Status GiveTokens(const v1::StoredJob& job);
  absl::Status Note(const JobPtr& job, const ClusterJob& seen);
  absl::Status StopJob(const JobPtr& job, const ClusterJob& ended);
  absl::Status FailJob(const JobPtr& job, const std::string& text);
  absl::Status LoseAllocation(const JobPtr& job, const ClusterJob& ended);
  // For an allocation that no job holds.
  absl::Status GiveBack(const std::string& id, const Listing& listing);
  absl::Status Revoke(const std::string& id);
  // `end`: how it ended, in the cluster manager's words; may be empty.
  absl::Status NoteReturned(const std::string& id, const std::string& end);
  // Changes the job while its live allocation is this one; else Aborted.
  absl::Status Change(const JobPtr& job, const JobStore::Change& change);
  void Report(const std::string& what, const absl::Status& status);
  // The same for what lets nothing be decided: jobs that wait say so until a pass gets further.
  void Hold(const std::string& what, const absl::Status& status);

  const Parts parts_;
  // Used by the thread only: the problems of this pass, and those of the one before.
  std::set<std::string> problems_, reported_;
  std::set<std::string> joined_;  // used by the thread only: allocations whose agents all joined
  absl::Duration quiet_until_;    // used by the thread only: monotonic

  Mutex mutex_;
  CondVar woken_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace nsa::server
