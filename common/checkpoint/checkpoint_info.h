// Information about a checkpoint folder, for nsactl (a folder) and the coordinator (a job).
#pragma once

#include <vector>

#include "common/checkpoint/checkpoint_dir.h"
#include "nsa/v1/coordinator.pb.h"

namespace nsa {

// Reads state.json and looks for PINNED; `error` says why state.json cannot be read. Does not
// verify the hashes of the other files.
v1::CheckpointInfo CheckpointInfoOf(const CheckpointEntry& entry);

// The checkpoints of a response, in its order. Their folders may be on another machine.
std::vector<CheckpointEntry> EntriesOf(const v1::ListCheckpointsResponse& response);

}  // namespace nsa
