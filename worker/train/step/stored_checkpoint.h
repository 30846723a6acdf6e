// A job that continues on a machine without its newest checkpoint takes it from
// train.checkpoint_url.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "nsa/v1/worker.pb.h"
#include "worker/train/comm/comm.h"
#include "worker/train/folder.h"

namespace nsa::train {

// A collective of every rank if the job has a checkpoint_url. In a restart of a gang that has
// published a checkpoint, rank 0 downloads the newest one of the job into out_dir if out_dir has
// none of that step or a later one, and returns what it did, for an event; otherwise returns
// nothing. Unavailable with CHECKPOINTS_MISSING when the store cannot be read or the checkpoint
// there is damaged: to begin earlier would lose work that a later start may still find.
absl::StatusOr<std::string> DownloadIfMissing(const v1::WorkerLaunch& launch, const Folder& out_dir,
                                              Comm* comm);

}  // namespace nsa::train
