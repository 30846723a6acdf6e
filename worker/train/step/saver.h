// When checkpoints are saved and how long the run tries: while it goes on a checkpoint that cannot
// be written is skipped; the last one is tried again, by all ranks together.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/run/status_page.h"
#include "nsa/v1/checkpoint.pb.h"
#include "worker/train/checkpoint/checkpoint.h"
#include "worker/train/comm/comm.h"
#include "worker/train/step/ending.h"

namespace nsa {

// How long a run tries to write its last checkpoint when that fails, e.g. because the disk is full:
// what it has trained exists in this process only. The same on all ranks.
struct LastSavePatience {
  absl::Duration first_wait = absl::Seconds(5);  // doubles
  absl::Duration longest_wait = absl::Minutes(1);
  absl::Duration total = absl::Hours(1);  // of all waits
};

// The wait after that many failures, 1 or more; nothing when patience has ended. Pure.
std::optional<absl::Duration> WaitAfter(int failures, const LastSavePatience& patience);

// What a checkpoint is made of: the tensors, and everything else.
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

  // Takes a checkpoint; it is written in the background. At step 0 there is nothing to save.
  absl::Status Save(const Snapshot& snapshot) { return Save(snapshot, {}); }

  // The same for the checkpoint that the run ends with, after `failures` to write it.
  absl::Status SaveLast(const Snapshot& snapshot, int failures = 0);

  // Waits until all ranks have written what they saved: no rank ends long before the files that it
  // ends with are on disk. While one of them fails, all ranks save `last` again, with growing
  // waits. Returns how the run ends when patience has.
  absl::StatusOr<std::optional<Ending>> Finish(const Snapshot& last);

 private:
  absl::Status Save(const Snapshot& snapshot, const SaveOptions& how);
  absl::StatusOr<bool> DrainTogether(absl::Status* drained);
  void Pause(absl::Duration wait);

  const SaverOptions options_;
};

}  // namespace nsa
