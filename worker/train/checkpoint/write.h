// Writes one snapshot to files. The writer's thread calls these functions; they start no threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nsa/v1/checkpoint.pb.h"
#include "worker/train/folder.h"
#include "worker/train/model/parameters.h"
#include "worker/train/model/slice.h"

namespace nsa::train {

// A copy of this rank's slice of the training state in host memory.
struct HostSnapshot {
  v1::CheckpointState state;
  const ParameterLayout* layout = nullptr;
  Slice slice;
  std::span<float> parameters;
  std::span<float> first_moment;
  std::span<float> second_moment;
  std::shared_ptr<float> memory;  // holds the three spans
  int64_t capacity = 0;           // of `memory`, in floats
  double stall_seconds = 0;
  int32_t attempt = 1;
  std::string then;  // what follows a failure, for the event's text
};

// The rank that writes, and where.
struct WriterPlace {
  Folder checkpoints;  // out_dir/checkpoints
  int32_t rank = 0;
  int32_t world_size = 1;
  int64_t generation = 0;
  absl::Duration shard_timeout;
};

// "step-00005000.tmp-3" in generation 3; "step-00005000.tmp-3-2" for the second attempt, so that
// files that a slow rank still writes for the first attempt do not mix with it.
std::string TemporaryName(const WriterPlace& place, const HostSnapshot& snapshot);

// Writes this rank's moments into the temporary folder; the result is that file. Ranks other than 0
// then also write their weights, for rank 0, and a `….done` file, or a `….failed` file after an
// error. FailedPrecondition when out_dir or its `checkpoints` has been replaced by something else.
absl::StatusOr<v1::CheckpointFile> WriteShard(const WriterPlace& place, const Folder& temporary,
                                              const HostSnapshot& snapshot);

// For rank 0, after WriteShard(): writes its own weights, waits for the other ranks' shards and
// takes over their weights, writes state.json and publishes the checkpoint. Returns the size of all
// files in bytes. DeadlineExceeded when a shard is not there in time, Aborted when a rank could not
// write its shard, DataLoss when its weights are not those that it wrote, Cancelled when
// `abandoned` became true before all shards were there, FailedPrecondition when the temporary
// folder has been replaced by something else.
absl::StatusOr<int64_t> CompleteCheckpoint(const WriterPlace& place, const Folder& temporary,
                                           const HostSnapshot& snapshot,
                                           v1::CheckpointFile own_shard,
                                           const std::atomic<bool>& abandoned);

// Removes temporary folders of steps below `before_step`. For rank 0, when no rank writes into
// them.
void RemoveTemporaryFolders(const Folder& checkpoints, int64_t before_step);

// Deletes the checkpoints that retention no longer keeps after a checkpoint at `step`. A folder is
// first renamed, durably, so that its final name never stands for a partly deleted checkpoint.
// Checkpoints of later steps, left by a run that was rolled back, are neither counted nor deleted,
// nor is a folder whose state.json cannot be read or names another job than `job_id`, nor are the
// newest `keep` of those that `may_delete`, if there is one, still wants. Returns one line per
// error.
std::vector<std::string> ApplyRetention(const Folder& checkpoints, int32_t keep, int64_t step,
                                        const std::string& job_id,
                                        const std::function<bool(int64_t step)>& may_delete = {});

}  // namespace nsa::train
