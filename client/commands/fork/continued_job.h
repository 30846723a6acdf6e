// A new job that continues from a checkpoint of another one: what `fork` and `replay` submit.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/connect/client.h"

namespace nsa::client {

// The checkpoints of the job of this id or name that can be read, oldest first.
absl::StatusOr<std::vector<v1::CheckpointInfo>> ReadableCheckpoints(Client* client,
                                                                    const std::string& job);

// The spec of `job`, changed so that it continues from `checkpoint` under this name, in an out_dir
// of its own beside the job's. With an empty path it begins as the job did.
v1::JobSpec ContinuedSpec(const v1::Job& job, const std::string& name,
                          const std::string& checkpoint);

}  // namespace nsa::client
