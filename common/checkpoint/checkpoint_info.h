// A checkpoint folder as it is listed, by nsactl for a folder and by the coordinator for a job.
#pragma once

#include "common/checkpoint/checkpoint_dir.h"
#include "nsa/v1/coordinator.pb.h"

namespace nsa {

// What state.json and the folder say; `error` says why state.json cannot be read. Hashes nothing.
v1::CheckpointInfo CheckpointInfoOf(const CheckpointEntry& entry);

}  // namespace nsa
