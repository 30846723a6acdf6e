// What users can do with jobs: submit, stop, resume, delete, view. The logic of
// coordinator_service.cc, without gRPC.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/preflight/preflight.h"
#include "nsa/v1/coordinator.pb.h"
#include "server/act/path_guard.h"
#include "server/decide/rule/quota.h"
#include "server/store/fleet.h"
#include "server/store/job_store.h"
#include "server/store/node/node_store.h"
#include "server/watch/queue_board.h"

namespace nsa::server {

// The caller: the name that submitted jobs get as their owner, the Unix user that runs them, and
// whether other owners' jobs do not exist for the caller.
struct Asker {
  std::string name;
  bool own_jobs_only = false;
  std::string unix_user;

  // For JobStore::Find() and its filter.
  std::string only() const { return own_jobs_only ? name : ""; }
};

// What the configuration says of jobs that are submitted.
struct JobPolicy {
  std::vector<std::string> provisioners;  // the cluster managers that there are
  std::vector<std::string> notices;       // the names of the notices
  Quotas quotas;
  double default_hours = 0;  // limits.hours of a job that comes without it; 0: none
};

// A job's out_dir, and what may be opened for the job.
struct JobFolder {
  std::string out_dir;
  JobFileLimits files;
};

// Thread-safe. Calls may take as long as preflight needs to read data files.
class JobControl {
 public:
  // All but `policy` are borrowed.
  JobControl(JobStore& store, const Fleet& fleet, const NodeStore& nodes, const QueueBoard& board,
             const PathGuard& paths, const Clock& clock, JobPolicy policy = {});

  // See coordinator.proto. InvalidArgument with violations when preflight refuses. `abandoned`
  // returns whether nobody waits for the answer any more; it is called while preflight reads files.
  // Once it returns true, the result is Cancelled and nothing is submitted. Null: never abandoned.
  // ResourceExhausted when reading takes longer than kRequestWork.
  absl::StatusOr<v1::SubmitJobResponse> Submit(const v1::SubmitJobRequest& request,
                                               const std::function<bool()>& abandoned = nullptr,
                                               const Asker& asker = {});
  absl::StatusOr<v1::Job> Get(const std::string& id_or_name, const Asker& asker = {},
                              v1::JobUse use = v1::JOB_USE_UNSPECIFIED) const;
  absl::StatusOr<v1::ListJobsResponse> List(const v1::ListJobsRequest& request,
                                            const Asker& asker = {}) const;
  absl::StatusOr<v1::Job> Stop(const v1::StopJobRequest& request, const Asker& asker = {});
  // A request with a spec is preflighted: see Submit().
  absl::StatusOr<v1::Job> Resume(const v1::ResumeJobRequest& request, const Asker& asker = {},
                                 const std::function<bool()>& abandoned = nullptr);
  // `from`, the address of the caller, is written to the coordinator's log and nowhere else.
  absl::StatusOr<v1::DeleteJobResponse> Delete(const v1::DeleteJobRequest& request,
                                               const std::string& from, const Asker& asker = {});

  v1::ListUseResponse Use(const Asker& asker) const;

  // The job's out_dir, which holds its checkpoints. InvalidArgument when the path now leads out of
  // the allowed roots, e.g. through a link that was made after the submit.
  absl::StatusOr<JobFolder> OutDir(const std::string& id_or_name, const Asker& asker = {}) const;

  // A stored job with the derived fields filled in: ranks, position in the queue, why it waits.
  v1::Job View(const v1::StoredJob& stored) const;

 private:
  absl::StatusOr<v1::SubmitJobResponse> Known(const v1::StoredJob& job, const Asker& asker) const;
  // What preflight knows besides the spec and the machines.
  PreflightContext ContextFor(const std::string& only, const std::function<bool()>& over) const;
  // {name} and {n} in train.out_dir (common/job/out_dir_number.h): a folder is taken if it is that
  // of any job, whose machine may have another disk, or is there.
  void NumberOutDir(v1::JobSpec* spec) const;
  // The spec with which `job` is resumed: its own, or that of the request if it may replace it.
  absl::StatusOr<v1::JobSpec> SpecToResume(const v1::StoredJob& job,
                                           const v1::ResumeJobRequest& request, const Asker& asker,
                                           const std::function<bool()>& abandoned) const;
  // A job with what holds it in the queue (server/decide/queue/hold.h) when `job` is resumed with
  // `spec`: what it waited for before, and what the spec names anew.
  absl::StatusOr<v1::Job> HeldAnew(const v1::StoredJob& job, const v1::JobSpec& spec,
                                   const Asker& asker) const;
  // Stores a job that preflight has accepted, if its owner's quota has room for it.
  absl::StatusOr<JobStore::Inserted> Admit(v1::StoredJob job, const std::string& request_id,
                                           const std::string& fingerprint);
  // OK without a quota.
  absl::Status CheckOwner(const std::string& owner, const v1::JobSpec& spec) const;
  void AddDefaultHours(v1::JobSpec* spec) const;
  absl::Status CheckStopStep(const v1::StoredJob& stored, const v1::StopRequest& stop) const;
  int64_t FurthestStep(const v1::StoredJob& stored) const;

  JobStore& store_;
  const Fleet& fleet_;
  const NodeStore& nodes_;
  const QueueBoard& board_;
  const PathGuard& paths_;
  const Clock& clock_;
  const JobPolicy policy_;
  // Held while a job is counted against its owner's quota and stored: what is accepted counts.
  Mutex admission_;
};

// Gives up the out_dir of a deleted job (ReleaseOutDir); a failure is logged.
void ReleaseFolder(const v1::Job& job);

// The line that the coordinator's log keeps about a deleted job.
std::string DeletionText(const v1::Job& job);

// "j" and 12 characters of lower-case base32, random.
std::string NewJobId();

}  // namespace nsa::server
