// From where a run resumes. Rank 0 decides and tells the other ranks.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nsa/v1/worker.pb.h"
#include "worker/train/comm/comm.h"
#include "worker/train/folder.h"

namespace nsa::train {

struct ResumePoint {
  std::filesystem::path checkpoint;  // empty: start from the initial weights
  bool weights_only = false;         // restart.init: begin at step 0 with its weights
  std::vector<std::string>
      rejected;  // newer checkpoints that are damaged, one line each; rank 0 only
};

// Unavailable with CHECKPOINTS_MISSING when this is a restart of a gang that has published
// checkpoints (restart.resume names one in out_dir) and out_dir has none now: it was moved, or its
// volume is not mounted. Without this check the restart would begin at step 0, which nobody asked
// for. Only reads, so that nothing is created at a mount point. For every rank, before out_dir is
// opened.
absl::Status CheckPublishedCheckpoints(const v1::WorkerLaunch& launch);

// Rank 0 decides according to restart.resume and tells every rank. A restart of the gang
// (generation 2 and later) resumes from the newest checkpoint in out_dir, if there is one, whatever
// restart.resume is. A run that would begin at step 0 takes the weights that restart.init names.
// Errors are the same on every rank: DataLoss with NO_VALID_CHECKPOINT when there are checkpoints
// but all are damaged; FailedPrecondition when restart.resume is `never` and out_dir already has
// checkpoints, since old and new ones could not be told apart.
absl::StatusOr<ResumePoint> ChooseResume(const v1::WorkerLaunch& launch, Comm* comm);

// Writes owner.json (job id and hash) into `out_dir` if it does not exist. FailedPrecondition when
// out_dir belongs to another job.
absl::Status ClaimOutDir(const v1::WorkerLaunch& launch, const Folder& out_dir);

}  // namespace nsa::train
