// Lists and verifies the checkpoints of a job for replies. Reads the disk; verifying reads every
// byte.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "nsa/v1/coordinator.pb.h"

namespace nsa::server {

// Oldest first. A checkpoint whose state.json cannot be read is listed with the error.
absl::StatusOr<v1::ListCheckpointsResponse> CheckpointsOf(const std::string& out_dir);

// Verifies the checkpoint of `step`; 0 means the newest. NotFound when there is none. `abandoned`
// is called often; Cancelled once it returns true, because nobody waits for the answer any more.
absl::StatusOr<v1::VerifyCheckpointResponse> Verify(const std::string& out_dir, int64_t step,
                                                    const std::function<bool()>& abandoned);

}  // namespace nsa::server
