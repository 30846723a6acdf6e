// Checkpoints. All ranks write them in the background; any number of ranks can load them. The
// format is proto/nsa/v1/checkpoint.proto; common/checkpoint/checkpoint_dir.h finds and verifies
// them.
//
// Writing. Save() copies this rank's slice of parameters and moments to host memory, which is all
// that training waits for, and returns; a thread writes the files. The slice is the rank's share,
// where it has no others (worker/train/model/shares.h), or an even one, so all ranks together need
// 12 bytes of host memory for each parameter of the model. Each rank writes its moments as one
// shard. Its weights go by way of a file, which is removed, into the one file of the weights:
// rank 0 writes that, and reads the others' weights 4 MiB at a time. All ranks write into the
// temporary folder `step-00005000.tmp-<generation>`, or `….tmp-<generation>-2` at a second attempt,
// so that shards that a slow rank still writes for the first attempt are not used. Other ranks mark
// their shards as complete with a `….done` file each. Rank 0 waits for them, writes state.json,
// syncs files and folder, renames the folder to its final name, syncs the parent, and points
// `latest.ckpt` to it. A folder with a final name is therefore complete, whenever a process is
// killed.
//
// A failed write, e.g. because the disk is full, loses that checkpoint only: its temporary folder
// is removed, a CheckpointRecord with `error` and the event CHECKPOINT_FAILED give the reason, and
// training continues. The last checkpoint of a run is retried (worker/train/step/saver.h). A
// checkpoint that was not finished because the gang ended has not failed: its folder is removed,
// too, but there is no record, and CHECKPOINT_ABANDONED gives the reason why the gang ended.
//
// out_dir and its checkpoints are opened once (worker/train/folder.h). When one of them, or the
// temporary folder, has been replaced by something else, the checkpoint fails as above; the
// replacement is neither written nor deleted.
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
#include "worker/train/model/slice.h"

namespace nsa::train {

class ParameterLayout;

struct CheckpointWriterOptions {
  Folder out_dir;
  int32_t rank = 0;        // among the ranks that write into this out_dir
  int32_t world_size = 1;  // their number
  int64_t generation = 0;
  int32_t keep = 2;                                  // train.keep_checkpoints
  absl::Duration shard_timeout = absl::Minutes(10);  // how long rank 0 waits for the others

  // Copies `from` (the trainer's device or host memory) to host memory. Empty: plain memory copy.
  std::function<absl::Status(std::span<float> to, std::span<const float> from)> copy;

  // Returns host memory for the `floats` values of the snapshot, e.g. pinned memory. When this is
  // empty or returns null, the writer uses ordinary memory. Called once on the writer's thread when
  // it starts, for a snapshot of `layout`.
  std::function<std::shared_ptr<float>(int64_t floats)> allocate;
  const ParameterLayout* layout = nullptr;

  // The slice of weights and moments that this rank writes, if it is not an even one. Those of all
  // ranks follow each other in rank order.
  std::optional<Slice> slice;

  // Whether retention may delete the checkpoint of a step, which it asks on the writer's thread on
  // rank 0. Of those that must wait for their upload it leaves as many as `keep`, so that a store
  // that cannot be reached does not fill the disk. Empty: it may.
  std::function<bool(int64_t step)> may_delete;

  // Called on the writer's thread. On rank 0: once per checkpoint, published or failed. On other
  // ranks: only for a shard that could not be written.
  std::function<void(const v1::CheckpointRecord&)> on_record;

  // Called on the writer's thread with CHECKPOINT_FAILED, CHECKPOINT_ABANDONED and
  // CHECKPOINT_DELETE_FAILED.
  std::function<void(const v1::WorkerEvent&)> on_event;

  // Called on the writer's thread before a checkpoint is written. Flushes telemetry, so that the
  // files contain the rows of every step up to a checkpoint from which a run resumes.
  std::function<void()> before_write;
};

enum class StatePart { kParameters, kFirstMoment, kSecondMoment };

// The tensors to save: flat arenas in the layout's order, the same on every rank. The layout
// outlives the writer; the values are copied.
struct TrainingState {
  const ParameterLayout* layout = nullptr;
  std::span<const float> parameters;
  std::span<const float> first_moment;
  std::span<const float> second_moment;

  // Where no rank has all of it: used instead of the three spans and of options.copy. Copies
  // elements of a part to host memory, in Save(). Every rank calls it for the same parts in the
  // same order; a rank that needs nothing of one asks for an empty slice.
  std::function<absl::Status(StatePart part, const Slice& wanted, std::span<float> to)> read;
};

struct SaveOptions {
  int32_t attempt = 1;                      // from 2: a retry of a step that was saved before
  std::string then = "training continues";  // what follows a failure, for the event's text
};

// One per rank. Save(), Drain() and DrainFor() are called on one thread.
class CheckpointWriter {
 public:
  // Creates out_dir/checkpoints if it is missing. FailedPrecondition when it is a symbolic link.
  // Rank 0 also takes out_dir's lock and removes temporary folders that earlier writers left.
  // Unavailable with OUT_DIR_BUSY when another worker trains into out_dir; the message names that
  // worker's process, host and generation.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Open(CheckpointWriterOptions options);

  // Waits until everything has been written.
  ~CheckpointWriter();

  // Copies the state and returns. The caller fills all of `state` except `world_size`, `files` and
  // `unix_nanos`. There is one snapshot: while the one before is being written, Save() waits for
  // its end, and the wait counts as stall. Saving the same step again does nothing (the last step
  // may also be a regular one) unless how.attempt is above 1; after a failure every rank retries.
  absl::Status Save(const TrainingState& tensors, v1::CheckpointState state,
                    const SaveOptions& how = {});

  // Waits until everything has been written. Returns the error of the last checkpoint if it could
  // not be published.
  absl::Status Drain();

  // The same, but waits for `patience` at most; nullopt when something is still being written then.
  std::optional<absl::Status> DrainFor(absl::Duration patience);

  // The gang ends because of `why`: stops waiting for other ranks' shards at once.
  void Abandon(std::string_view why);

 private:
  class Impl;
  explicit CheckpointWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Where to load a checkpoint to: full arenas in the layout's order, or slices of them. Empty
// moments are not loaded, unless a slice is given, which may be empty.
struct RestoreTarget {
  const ParameterLayout* layout = nullptr;
  std::span<float> parameters;
  std::span<float> first_moment;
  std::span<float> second_moment;
  std::optional<Slice> slice;    // the elements that the moments hold, if not all
  std::optional<Slice> weights;  // the elements that `parameters` holds, if not all

  // The elements that the moments hold.
  Slice moments() const {
    return slice.value_or(Slice{0, static_cast<int64_t>(first_moment.size())});
  }
};

// Verifies every file, then loads the tensors into `target`. `job_hash` (common/job/load.h) must
// equal the checkpoint's; an empty one is not compared. The world size may differ from that of the
// writers. DataLoss names the file and what is wrong with it; FailedPrecondition when the
// checkpoint belongs to another job or model.
absl::StatusOr<v1::CheckpointState> LoadCheckpoint(const std::filesystem::path& checkpoint,
                                                   const std::string& job_hash,
                                                   const RestoreTarget& target);

}  // namespace nsa::train
