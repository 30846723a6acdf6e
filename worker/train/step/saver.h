// Saves checkpoints and handles failures. While the run continues, a checkpoint that cannot be
// written is skipped. The last checkpoint of a run is retried by all ranks together.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/run/status_page.h"
#include "nsa/v1/checkpoint.pb.h"
#include "worker/train/checkpoint/checkpoint.h"
#include "worker/train/checkpoint/upload/uploader.h"
#include "worker/train/comm/comm.h"
#include "worker/train/step/ending.h"

namespace nsa::train {

// How long a run retries its last checkpoint when it cannot be written, e.g. because the disk is
// full. It is worth waiting, since the result of the training exists only in the memory of the
// processes. The same on all ranks.
struct LastSavePatience {
  absl::Duration first_wait = absl::Seconds(5);  // later waits double
  absl::Duration longest_wait = absl::Minutes(1);
  absl::Duration total = absl::Hours(1);  // of all waits
};

// The wait after the given number of failures, 1 or more; nullopt when no time is left. Pure.
std::optional<absl::Duration> WaitAfter(int failures, const LastSavePatience& patience);

// The content of a checkpoint: the tensors, and everything else.
struct Snapshot {
  TrainingState tensors;
  v1::CheckpointState state;
};

// All borrowed.
struct SaverOptions {
  CheckpointWriter* writer = nullptr;
  Comm* comm = nullptr;
  StatusPage* page = nullptr;
  const Clock* clock = nullptr;
  LastSavePatience patience;
};

// One thread at a time.
class Saver {
 public:
  explicit Saver(const SaverOptions& options) : options_(options) {}

  // Saves a checkpoint, which is written in the background, once all ranks have written the one
  // before. Every rank calls it at the same steps. Does nothing at step 0.
  absl::Status Save(const Snapshot& snapshot) { return Save(snapshot, {}); }

  // The same for the last checkpoint of the run, which could not be written `failures` times.
  absl::Status SaveLast(const Snapshot& snapshot, int failures = 0);

  // Waits until all ranks have written what they saved, so that no rank ends long before the files
  // of the last checkpoint are on disk. When a rank fails, all ranks save `last` again, with
  // increasing waits. Returns nullopt when everything is written, or how the run ends when the time
  // for retries is over.
  absl::StatusOr<std::optional<Ending>> Finish(const Snapshot& last);

  // Every rank waits until `uploader`, which rank 0 has, is up to date; for at most `longest`, and
  // only as long as a part was stored within the last `idle`.
  absl::Status AwaitUpload(const Uploader* uploader, absl::Duration longest, absl::Duration idle);

  // Waits until all ranks have written what they saved, or could not.
  void Drain() {
    absl::Status drained;
    DrainTogether(&drained).status().IgnoreError();
  }

 private:
  absl::Status Save(const Snapshot& snapshot, const SaveOptions& how);
  absl::StatusOr<bool> DrainTogether(absl::Status* drained);
  void Pause(absl::Duration wait);

  const SaverOptions options_;
};

}  // namespace nsa::train
