// Where a run resumes: rank 0 decides and tells the others.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nsa/v1/worker.pb.h"
#include "worker/train/comm/comm.h"
#include "worker/train/folder.h"

namespace nsa {

struct ResumePoint {
  std::filesystem::path checkpoint;  // empty: from the initial weights
  std::vector<std::string>
      rejected;  // newer checkpoints that are damaged, one line each; rank 0 only
};

// Unavailable with CHECKPOINTS_MISSING when this is a restart of a gang that has published
// checkpoints (restart.resume names one of out_dir's own) and out_dir has none now: it was moved,
// or its volume is not mounted. Nobody asked to begin again at step 0. Reads only, so that nothing
// is created at a mount point. Any rank, before out_dir is opened.
absl::Status CheckPublishedAreThere(const v1::WorkerLaunch& launch);

// Rank 0 decides by restart.resume and tells every rank. A restart of the gang (generation 2 and
// later) resumes its own newest checkpoint whatever restart.resume says.
// Errors are the same on every rank: DataLoss with NO_VALID_CHECKPOINT when there are checkpoints
// but all are damaged; FailedPrecondition when restart.resume is `never` and out_dir has
// checkpoints already, since old and new ones could not be told apart.
absl::StatusOr<ResumePoint> ChooseResume(const v1::WorkerLaunch& launch, Comm* comm);

// Writes owner.json (job id and hash) into `out_dir` when it is not there. FailedPrecondition when
// out_dir belongs to another job.
absl::Status ClaimOutDir(const v1::WorkerLaunch& launch, const Folder& out_dir);

}  // namespace nsa
