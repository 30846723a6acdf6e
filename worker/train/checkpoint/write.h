// Writing one snapshot: what the writer's thread does. Everything here is about files; no thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nsa/v1/checkpoint.pb.h"
#include "worker/train/folder.h"
#include "worker/train/model/parameters.h"

namespace nsa {

// A copy in host memory.
struct Snapshot {
  v1::CheckpointState state;
  const ParameterLayout* layout = nullptr;
  std::span<float> parameters;     // rank 0 only
  std::span<float> first_moment;   // this rank's slice
  std::span<float> second_moment;  // this rank's slice
  std::shared_ptr<float> memory;   // where they are
  int64_t capacity = 0;            // floats of it
  double stall_seconds = 0;
  int32_t attempt = 1;
  std::string then;  // what comes after a failure, for people
};

// Who writes.
struct WriterPlace {
  Folder checkpoints;  // out_dir/checkpoints
  int32_t rank = 0;
  int32_t world_size = 1;
  int64_t generation = 0;
  absl::Duration shard_timeout;
};

// "step-00005000.tmp-3" in generation 3; "step-00005000.tmp-3-2" for the second attempt, which has
// nothing to do with files that a slow rank still writes for the first.
std::string TemporaryName(const WriterPlace& place, const Snapshot& snapshot);

// Any rank: its shard in the temporary folder, and for other ranks than 0 the `….done` file that
// says so, or a `….failed` one. FailedPrecondition when something else has taken the place of
// out_dir or of its checkpoints.
absl::StatusOr<v1::CheckpointFile> WriteShard(const WriterPlace& place, const Folder& temporary,
                                              const Snapshot& snapshot);

// Rank 0, once its shard is written: the weights, the other ranks' shards, state.json, publication.
// Returns the size of all files. DeadlineExceeded when a shard does not come, Aborted when a rank
// could not write its own, Cancelled when `abandoned` became true before all were there,
// FailedPrecondition when something else has taken the place of the temporary folder.
absl::StatusOr<int64_t> CompleteCheckpoint(const WriterPlace& place, const Folder& temporary,
                                           const Snapshot& snapshot, v1::CheckpointFile own_shard,
                                           const std::atomic<bool>& abandoned);

// Removes temporary folders of steps below `before_step`. Rank 0; nobody may be writing into them.
void RemoveTemporaryFolders(const Folder& checkpoints, int64_t before_step);

// Deletes what retention lets go after a checkpoint at `step`: a folder first loses its final name,
// durably, so that it is never half there. Checkpoints of later steps, left by a run that was
// rolled back, neither count nor go. Returns one line a folder that could not be deleted.
std::vector<std::string> ApplyRetention(const Folder& checkpoints, int32_t keep, int64_t step);

}  // namespace nsa
