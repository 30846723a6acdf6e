// Checkpoints: written in the background by all ranks, read back by any number of them. The format
// is proto/nsa/v1/checkpoint.proto, choosing and verifying are common/checkpoint/checkpoint_dir.h.
//
// Writing. Save() copies parameters and moments to host memory (the only part that training waits
// for) and returns; a thread writes. Every rank writes an even slice of the flat AdamW moments,
// rank 0 also the weights. The ranks meet in the folder `step-00005000.tmp-<generation>` (a
// second attempt in `….tmp-<generation>-2`: what a late rank left of the first is not its): a
// rank's shard is complete when its `….done` file is there; rank 0 waits for all of them, writes
// state.json, syncs files and folder, renames, syncs the parent, and swings `latest.ckpt`. Killed
// at any moment, what has a final name is complete.
//
// A failed write (disk full, …) costs that checkpoint and nothing else: its temporary folder goes,
// a CheckpointRecord with `error` and CHECKPOINT_FAILED say why, training continues; the last one
// is tried again (worker/train/step/trainer.h). One that was not finished because the gang ended
// has not failed: its folder goes too, there is no record, and CHECKPOINT_ABANDONED says what ended
// the gang.
//
// out_dir and its checkpoints are opened once (worker/train/folder.h). When something else lies in
// their place, or in that of the temporary folder, the checkpoint fails as above: nothing is
// written into what lies there, and nothing of it is deleted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nsa/v1/checkpoint.pb.h"
#include "nsa/v1/telemetry.pb.h"
#include "worker/train/folder.h"

namespace nsa {

class ParameterLayout;

struct CheckpointWriterOptions {
  Folder out_dir;
  int32_t rank = 0;
  int32_t world_size = 1;
  int64_t generation = 0;
  int32_t keep = 2;                                  // train.keep_checkpoints
  absl::Duration shard_timeout = absl::Minutes(10);  // rank 0's patience with the others

  // Copies `from` (device or host memory of the trainer) to host memory; memcpy when empty.
  std::function<absl::Status(std::span<float> to, std::span<const float> from)> copy;

  // Host memory for `floats` values of a snapshot, e.g. pinned; may answer null, and then, as when
  // empty, plain memory is taken. Called on the writer's thread, as soon as it runs, for snapshots
  // of `layout`.
  std::function<std::shared_ptr<float>(int64_t floats)> allocate;
  const ParameterLayout* layout = nullptr;

  // Called on the writer's thread. Rank 0: once a checkpoint, published or failed. Other ranks:
  // only for a shard that could not be written.
  std::function<void(const v1::CheckpointRecord&)> on_record;

  // Called on the writer's thread: CHECKPOINT_FAILED, CHECKPOINT_ABANDONED,
  // CHECKPOINT_DELETE_FAILED.
  std::function<void(const v1::WorkerEvent&)> on_event;

  // Called on the writer's thread before anything of a checkpoint is written: flushes telemetry, so
  // that a run resumed from this checkpoint finds the rows of every step up to it in its files.
  std::function<void()> before_write;
};

// What a checkpoint is taken of: flat arenas in the layout's order, on every rank the same. The
// layout outlives the writer; the rest is copied.
struct TrainingState {
  const ParameterLayout* layout = nullptr;
  std::span<const float> parameters;
  std::span<const float> first_moment;
  std::span<const float> second_moment;
};

struct SaveOptions {
  int32_t attempt = 1;                      // 2 and more: again, though this step was saved before
  std::string then = "training continues";  // what comes after a failure, for people
};

// One a rank. Save(), Drain() and DrainFor() come from one thread.
class CheckpointWriter {
 public:
  // Makes out_dir/checkpoints. FailedPrecondition when a link is there. Rank 0 takes out_dir's lock
  // (Unavailable, reason OUT_DIR_BUSY, naming process, host and generation, while another worker
  // trains into it) and removes what writers that died have left.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Open(CheckpointWriterOptions options);

  // Finishes what is being written.
  ~CheckpointWriter();

  // Copies and returns. `state` needs everything but `world_size`, `files` and `unix_nanos`. Two
  // snapshots fit: a third Save() waits for the first to be written, and the wait counts as stall.
  // A step that was saved already is not saved again, so that the last step may be a regular one,
  // unless `how` says so: after a failure, and then on every rank.
  absl::Status Save(const TrainingState& tensors, v1::CheckpointState state,
                    const SaveOptions& how = {});

  // Waits until everything has been written. The error of the last Save() when it could not be
  // published.
  absl::Status Drain();

  // The same for as long as `patience`; nothing when something is still being written then.
  std::optional<absl::Status> DrainFor(absl::Duration patience);

  // The gang ends, because of `why`: what waits for other ranks' shards is given up at once.
  void Abandon(std::string_view why);

 private:
  class Impl;
  explicit CheckpointWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Where a checkpoint is loaded to: full arenas in the layout's order. Empty moments are not loaded.
struct RestoreTarget {
  const ParameterLayout* layout = nullptr;
  std::span<float> parameters;
  std::span<float> first_moment;
  std::span<float> second_moment;
};

// Verifies every file, then restores. `job_hash` (common/job/load.h) must be the checkpoint's;
// empty does not compare. Any world size may load what any other wrote. DataLoss names the file and
// what is wrong with it; FailedPrecondition when the checkpoint belongs to another job or model.
absl::StatusOr<v1::CheckpointState> LoadCheckpoint(const std::filesystem::path& checkpoint,
                                                   const std::string& job_hash,
                                                   const RestoreTarget& target);

}  // namespace nsa
