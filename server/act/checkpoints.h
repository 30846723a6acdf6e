// Checkpoints of a job as replies. Reads the disk; verifying reads every byte.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "nsa/v1/coordinator.pb.h"

namespace nsa::server {

// Oldest first; one whose state.json cannot be read is listed with the error.
absl::StatusOr<v1::ListCheckpointsResponse> CheckpointsOf(const std::string& out_dir);

// The checkpoint of `step`, or the newest for 0. NotFound when there is none. Cancelled once
// `abandoned` returns true: nobody waits for the answer any more. It is called often.
absl::StatusOr<v1::VerifyCheckpointResponse> Verify(const std::string& out_dir, int64_t step,
                                                    const std::function<bool()>& abandoned);

}  // namespace nsa::server
