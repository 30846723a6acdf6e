// Which ranks have the same out_dir. Ranks on one machine do. Ranks on several machines do if
// out_dir lies on storage that the machines share; otherwise each machine has a folder of its own,
// in which its ranks write whole checkpoints, as if they were all ranks of the job.
#pragma once

#include "absl/status/statusor.h"
#include "nsa/v1/worker.pb.h"
#include "worker/train/comm/comm.h"
#include "worker/train/folder.h"

namespace nsa::train {

// The ranks that have the out_dir of this rank.
struct OutDirRanks {
  int index = 0;  // of this rank among them, in the order of ranks; 0 writes for all of them
  int count = 1;  // of them
  bool everybody = true;  // they are all ranks of the job
};

// Finds them out. A collective. If the ranks are on several machines, every rank leaves a file in
// out_dir for a moment and looks whose files it sees; otherwise nothing is written.
// FailedPrecondition when out_dir cannot be written.
absl::StatusOr<OutDirRanks> FindOutDirRanks(const v1::WorkerLaunch& launch, const Folder& out_dir,
                                            Comm* comm);

}  // namespace nsa::train
