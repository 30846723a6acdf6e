// Where a run goes on: rank 0 decides, the others are told.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nsa/v1/worker.pb.h"
#include "worker/train/comm.h"
#include "worker/train/folder.h"

namespace nsa {

struct ResumePoint {
  std::filesystem::path checkpoint;  // empty: from the initial weights
  std::vector<std::string>
      rejected;  // newer checkpoints that do not verify, a line each; rank 0 only
};

// Unavailable with CHECKPOINTS_MISSING when this is a restart of a gang that has published
// checkpoints (restart.resume names one of out_dir's own) and out_dir has none now: it was moved
// away, or its volume is not mounted. To begin at step 0 would throw them away unasked. Reads only,
// and creates nothing where a volume belongs. Any rank, before out_dir is opened.
absl::Status CheckPublishedAreThere(const v1::WorkerLaunch& launch);

// Decides by restart.resume, on rank 0, and tells every rank. A restart of the gang (generation 2
// and later) goes on from its own newest checkpoint whatever restart.resume says.
// Errors are the same on every rank: DataLoss with NO_VALID_CHECKPOINT when there are checkpoints
// but none verifies; FailedPrecondition when `never` meets an out_dir that has checkpoints already,
// since old and new ones could not be told apart.
absl::StatusOr<ResumePoint> ChooseResume(const v1::WorkerLaunch& launch, Comm* comm);

// Writes owner.json (job id and hash) into `out_dir` when it is not there. FailedPrecondition when
// out_dir belongs to another job.
absl::Status ClaimOutDir(const v1::WorkerLaunch& launch, const Folder& out_dir);

}  // namespace nsa
