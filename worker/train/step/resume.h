// From where a run resumes. One rank decides and tells the others: rank 0, or, if the machines have
// an out_dir each, the rank with the newest checkpoint, which then sends it to the others.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nsa/v1/checkpoint.pb.h"
#include "nsa/v1/worker.pb.h"
#include "worker/train/checkpoint/checkpoint.h"
#include "worker/train/comm/comm.h"
#include "worker/train/folder.h"
#include "worker/train/step/out_dir_ranks.h"

namespace nsa::train {

constexpr int kEveryRank = -1;

struct ResumePoint {
  std::filesystem::path checkpoint;  // empty: start from the initial weights
  bool weights_only = false;         // restart.init: begin at step 0 with its weights
  int from_rank = kEveryRank;        // the rank that can read the checkpoint
  std::vector<std::string>
      rejected;  // newer checkpoints that this rank found to be damaged, one line each
};

// Whether this is a restart of a gang that has published checkpoints. It continues from those in
// out_dir alone.
bool HasPublished(const v1::WorkerLaunch& launch);

// Unavailable with CHECKPOINTS_MISSING when this is a restart of a gang that has published
// checkpoints and out_dir has none now: it was moved, or its volume is not mounted. Without this
// check the restart would begin at step 0, which nobody asked for. Only reads, so that nothing is
// created at a mount point. For every rank, before out_dir is opened, unless the job runs on
// several machines: one of them may be new to it.
absl::Status CheckPublishedCheckpoints(const v1::WorkerLaunch& launch);

// Rank 0 decides according to restart.resume and tells every rank. A restart of the gang
// (generation 2 and later) resumes from the newest checkpoint in out_dir, if there is one, whatever
// restart.resume is. A run that would begin at step 0 takes the weights that restart.init names.
// Errors are the same on every rank: DataLoss with NO_VALID_CHECKPOINT when there are checkpoints
// but all are damaged; FailedPrecondition when restart.resume is `never` and out_dir already has
// checkpoints, since old and new ones could not be told apart.
//
// If the machines have an out_dir each (`ranks`), the first rank of each looks into its own. The
// newest checkpoint counts, at equal steps that of the lowest rank. A machine without a checkpoint,
// or with damaged ones only, is no error as long as another has one; Unavailable with
// CHECKPOINTS_MISSING when none has one in a restart after a published checkpoint.
absl::StatusOr<ResumePoint> ChooseResume(const v1::WorkerLaunch& launch, const OutDirRanks& ranks,
                                         Comm* comm);

// The state.json of the chosen checkpoint, on every rank. A collective if one rank reads it for
// all. Errors are those of ReadCheckpointState(), the same on every rank.
absl::StatusOr<v1::CheckpointState> ReadStateOf(const ResumePoint& point, Comm* comm);

// LoadCheckpoint() on every rank. If one rank reads the checkpoint for all, it sends the tensors:
// 12 bytes for each parameter, or 4 where the targets have no moments. It holds all of them
// meanwhile, also where its target has a slice.
absl::StatusOr<v1::CheckpointState> LoadFor(const ResumePoint& point, const std::string& job_hash,
                                            const RestoreTarget& target, Comm* comm);

// Writes owner.json (job id and hash) into `out_dir` if it does not exist. FailedPrecondition when
// out_dir belongs to another job.
absl::Status ClaimOutDir(const v1::WorkerLaunch& launch, const Folder& out_dir);

}  // namespace nsa::train
