// Lists and verifies the checkpoints of a job for replies, and gives up the folder of a deleted
// job. Reads the disk; verifying reads every byte. All read the files of this thread's JobFileScope
// and end with Cancelled once nobody needs them.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nsa/v1/coordinator.pb.h"

namespace nsa::server {

// Oldest first. A checkpoint whose state.json cannot be read is listed with the error.
absl::StatusOr<v1::ListCheckpointsResponse> CheckpointsOf(
    const std::string& out_dir, const v1::ListCheckpointsRequest& request);

// The newest `most`, oldest first, and fewer if they would not fit into a page of a reply.
absl::StatusOr<std::vector<v1::CheckpointInfo>> NewestCheckpoints(const std::string& out_dir,
                                                                  size_t most);

// Verifies the checkpoint of `step`; 0 means the newest. NotFound when there is none. `abandoned`
// is called often; Cancelled once it returns true, because nobody waits for the answer any more.
absl::StatusOr<v1::VerifyCheckpointResponse> Verify(const std::string& out_dir, int64_t step,
                                                    const std::function<bool()>& abandoned);

// Gives up out_dir, whose job was deleted: removes its owner.json, so that another job may take the
// folder with its checkpoints. Does nothing if the file is not there, e.g. because out_dir is on
// another machine, or names another job.
absl::Status ReleaseOutDir(const std::string& out_dir, const std::string& job_id);

}  // namespace nsa::server
