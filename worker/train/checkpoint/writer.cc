#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/mutex.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/base/thread_name.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/run/file_lock.h"
#include "worker/train/checkpoint/checkpoint.h"
#include "worker/train/checkpoint/slices.h"
#include "worker/train/checkpoint/write.h"

namespace nsa::train {
namespace {

// Locks out_dir for one worker. The kernel releases the lock when the process ends, in whatever
// way. That may be a while after SIGKILL, and on a shared file system the process may run on a
// machine that cannot be reached. So a worker that finds the lock held fails with an error that is
// retried.
absl::StatusOr<FileLock> LockOutDir(const Folder& checkpoints, int64_t generation) {
  const std::filesystem::path path = checkpoints.path() / ".lock";
  NSA_ASSIGN_OR_RETURN(Fd file, checkpoints.Open(".lock", O_RDWR | O_CREAT));
  absl::StatusOr<FileLock> lock =
      FileLock::Take(std::move(file), path, absl::StrCat("generation ", generation));
  if (!absl::IsAlreadyExists(lock.status())) return lock;
  return ReasonError(
      absl::StatusCode::kUnavailable, Reason::kOutDirBusy,
      absl::StrFormat(
          "train.out_dir: %s is being trained into by %s; end it, or choose another folder",
          path.parent_path().parent_path().string(), lock.status().message()));
}

// Points latest.ckpt to the newest checkpoint. A writer that was killed between publishing a
// checkpoint and updating the link has left the link one behind.
absl::Status RepairLatestLink(const Folder& checkpoints) {
  NSA_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries,
                       CheckpointsIn(checkpoints.fixed_path()));
  if (entries.empty()) return absl::OkStatus();
  return checkpoints.PointLink("latest.ckpt", CheckpointName(entries.back().step));
}

absl::Status CopyOnHost(std::span<float> to, std::span<const float> from) {
  std::copy(from.begin(), from.end(), to.begin());
  return absl::OkStatus();
}

}  // namespace

class CheckpointWriter::Impl {
 public:
  Impl(CheckpointWriterOptions options, Folder checkpoints, FileLock lock)
      : options_(std::move(options)), lock_(std::move(lock)) {
    if (!options_.copy) options_.copy = CopyOnHost;
    place_ = {std::move(checkpoints), options_.rank, options_.world_size, options_.generation,
              options_.shard_timeout};
    thread_ = std::thread([this] { Run(); });
  }

  ~Impl() {
    {
      const MutexLock lock(&mutex_);
      ending_ = true;
      changed_.SignalAll();
    }
    thread_.join();
  }

  absl::Status Save(const TrainingState& tensors, v1::CheckpointState state,
                    const SaveOptions& how) {
    if (state.step() == last_step_ && how.attempt == 1) return absl::OkStatus();
    const RealClock clock;
    const absl::Duration started = clock.Monotonic();
    AwaitSnapshot();
    state.set_unix_nanos(absl::ToUnixNanos(clock.Wall()));
    NSA_RETURN_IF_ERROR(Annotate(Copy(tensors), "checkpoint snapshot"));
    last_step_ = state.step();
    snapshot_.state = std::move(state);
    snapshot_.then = how.then;
    snapshot_.attempt = how.attempt;
    snapshot_.stall_seconds = absl::ToDoubleSeconds(clock.Monotonic() - started);
    const MutexLock lock(&mutex_);
    turn_ = Turn::kWriter;
    changed_.SignalAll();
    return absl::OkStatus();
  }

  absl::Status Drain() {
    AwaitSnapshot();
    const MutexLock lock(&mutex_);
    return last_result_;
  }

  std::optional<absl::Status> DrainFor(absl::Duration patience) {
    const RealClock clock;
    const absl::Duration deadline = clock.Monotonic() + patience;
    const MutexLock lock(&mutex_);
    while (turn_ == Turn::kWriter) {
      const absl::Duration left = deadline - clock.Monotonic();
      if (left <= absl::ZeroDuration()) return std::nullopt;
      changed_.WaitFor(&mutex_, left);
    }
    return last_result_;
  }

  void Abandon(std::string_view why) {
    {
      const MutexLock lock(&mutex_);
      why_abandoned_ = why;
    }
    abandoned_ = true;
  }

 private:
  // Whose the snapshot is. The training thread fills it and hands it over; the writer's thread
  // allocates its memory, and hands it back when it is written.
  enum class Turn : uint8_t { kTraining, kWriter };

  void AwaitSnapshot() {
    const MutexLock lock(&mutex_);
    while (turn_ == Turn::kWriter) changed_.Wait(&mutex_);
  }

  // The slice that this rank writes of a model with `total` parameters.
  Slice OwnSlice(int64_t total) const {
    return options_.slice.value_or(SliceOf(total, options_.rank, options_.world_size));
  }

  // How many floats this rank copies of it: weights and two moments.
  int64_t FloatsOf(int64_t total) const { return 3 * OwnSlice(total).size(); }

  // Allocates memory with options_.allocate, which takes long: in advance, on the writer's thread.
  void AllocateSnapshot() {
    if (!options_.allocate) return;
    const int64_t floats = FloatsOf(options_.layout->size());
    snapshot_.memory = options_.allocate(floats);
    if (snapshot_.memory != nullptr) snapshot_.capacity = floats;
  }

  absl::Status Copy(const TrainingState& tensors) {
    const int64_t total = tensors.layout->size(), floats = FloatsOf(total);
    const Slice slice = OwnSlice(total);
    const auto size = static_cast<size_t>(slice.size());
    if (snapshot_.capacity < floats) {
      snapshot_.memory = {new float[static_cast<size_t>(floats)], std::default_delete<float[]>()};
      snapshot_.capacity = floats;
    }
    const std::span<float> all(snapshot_.memory.get(), static_cast<size_t>(floats));
    snapshot_.layout = tensors.layout;
    snapshot_.slice = slice;
    snapshot_.parameters = all.first(size);
    snapshot_.first_moment = all.subspan(size, size);
    snapshot_.second_moment = all.subspan(2 * size);
    NSA_RETURN_IF_ERROR(Read(tensors, StatePart::kParameters, slice, snapshot_.parameters));
    NSA_RETURN_IF_ERROR(Read(tensors, StatePart::kFirstMoment, slice, snapshot_.first_moment));
    return Read(tensors, StatePart::kSecondMoment, slice, snapshot_.second_moment);
  }

  absl::Status Read(const TrainingState& tensors, StatePart part, const Slice& wanted,
                    std::span<float> to) {
    if (tensors.read) return tensors.read(part, wanted, to);
    if (wanted.empty()) return absl::OkStatus();
    const std::span<const float> from = part == StatePart::kParameters    ? tensors.parameters
                                        : part == StatePart::kFirstMoment ? tensors.first_moment
                                                                          : tensors.second_moment;
    return options_.copy(
        to, from.subspan(static_cast<size_t>(wanted.begin), static_cast<size_t>(wanted.size())));
  }

  void Run() {
    NameThread("checkpoint");
    AllocateSnapshot();
    EndTurn(absl::OkStatus());
    while (AwaitTurn()) EndTurn(Write(snapshot_));
  }

  // Waits for a snapshot to write; false when there will be none any more.
  bool AwaitTurn() {
    const MutexLock lock(&mutex_);
    while (turn_ == Turn::kTraining && !ending_) changed_.Wait(&mutex_);
    return turn_ == Turn::kWriter;
  }

  void EndTurn(absl::Status result) {
    const MutexLock lock(&mutex_);
    last_result_ = std::move(result);
    turn_ = Turn::kTraining;
    changed_.SignalAll();
  }

  // Writes a snapshot as a checkpoint: shards, state.json, rename, latest.ckpt.
  absl::Status Write(const HostSnapshot& snapshot) {
    const RealClock clock;
    const absl::Duration started = clock.Monotonic();
    const int64_t step = snapshot.state.step();
    if (options_.before_write) options_.before_write();
    const absl::StatusOr<int64_t> bytes = WriteFiles(snapshot);
    // No write failed: the checkpoint is incomplete because the gang ended, and the event says why.
    const std::string given_up = WhyGivenUp(snapshot, bytes.status());
    if (!given_up.empty()) {
      if (options_.rank == 0) TidyUp(snapshot, /*published=*/false);
      Event(Reason::kCheckpointAbandoned, v1::SEVERITY_INFO,
            absl::StrCat(CheckpointName(step), ": given up, ", given_up));
      return bytes.status();
    }
    v1::CheckpointRecord record;
    record.set_step(step);
    record.set_path((place_.checkpoints.path() / CheckpointName(step)).string());
    record.set_bytes(bytes.ok() ? *bytes : 0);
    record.set_stall_seconds(snapshot.stall_seconds);
    record.set_write_seconds(absl::ToDoubleSeconds(clock.Monotonic() - started));
    if (!bytes.ok()) record.set_error(std::string(bytes.status().message()));
    if (options_.rank == 0) TidyUp(snapshot, bytes.ok());
    if (options_.on_record && (options_.rank == 0 || !bytes.ok())) options_.on_record(record);
    if (!bytes.ok()) {
      ReportFailure(Reason::kCheckpointFailed, v1::SEVERITY_ERROR, CheckpointName(step),
                    bytes.status().message(), snapshot.then);
    }
    return bytes.status();
  }

  // Returns the size of this rank's shard in bytes, on rank 0 that of the whole checkpoint.
  absl::StatusOr<int64_t> WriteFiles(const HostSnapshot& snapshot) {
    NSA_ASSIGN_OR_RETURN(const Folder temporary,
                         place_.checkpoints.MakeFolder(TemporaryName(place_, snapshot)));
    NSA_ASSIGN_OR_RETURN(v1::CheckpointFile shard, WriteShard(place_, temporary, snapshot));
    if (options_.rank != 0) return shard.bytes();
    return CompleteCheckpoint(place_, temporary, snapshot, std::move(shard), abandoned_);
  }

  // Why the checkpoint was given up although this rank could write; empty for any other result.
  std::string WhyGivenUp(const HostSnapshot& snapshot, const absl::Status& result) {
    if (absl::IsCancelled(result)) {
      const MutexLock lock(&mutex_);
      return absl::StrCat(result.message(), " when the gang ended: ", why_abandoned_);
    }
    // Rank 0 has given up or failed, reported why, and removed the folder while this rank wrote.
    if (absl::IsNotFound(result) && options_.rank != 0 &&
        !place_.checkpoints.Has(TemporaryName(place_, snapshot))) {
      return "rank 0 has removed its folder; see its events";
    }
    return "";
  }

  // Removes the temporary folder; after a failure the next checkpoint may need its space. After a
  // success also removes leftovers of earlier attempts and what retention no longer keeps.
  void TidyUp(const HostSnapshot& snapshot, bool published) {
    const int64_t step = snapshot.state.step();
    place_.checkpoints.RemoveAll(TemporaryName(place_, snapshot)).IgnoreError();
    if (!published) return;
    RemoveTemporaryFolders(place_.checkpoints, step + 1);  // also earlier attempts at this step
    for (const std::string& problem :
         ApplyRetention(place_.checkpoints, options_.keep, step, snapshot.state.job_id(),
                        options_.may_delete)) {
      ReportFailure(Reason::kCheckpointDeleteFailed, v1::SEVERITY_WARNING,
                    "an old checkpoint could not be deleted", problem, SaveOptions().then);
    }
  }

  void ReportFailure(Reason reason, v1::Severity severity, std::string_view what,
                     absl::string_view why, const std::string& then) {
    Event(reason, severity,
          absl::StrFormat("%s: %s; free space or fix the folder, %s", what, why, then));
  }

  void Event(Reason reason, v1::Severity severity, const std::string& text) {
    if (!options_.on_event) return;
    v1::WorkerEvent event;
    event.set_reason(Word(reason));
    event.set_text(text);
    event.set_severity(severity);
    options_.on_event(event);
  }

  CheckpointWriterOptions options_;
  const FileLock lock_;
  WriterPlace place_;
  int64_t last_step_ = -1;  // used by the training thread only
  HostSnapshot snapshot_;   // used by the thread whose turn it is
  std::atomic<bool> abandoned_{false};

  Mutex mutex_;
  CondVar changed_;
  Turn turn_ ABSL_GUARDED_BY(mutex_) = Turn::kWriter;
  absl::Status last_result_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::string why_abandoned_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

CheckpointWriter::CheckpointWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointWriter::~CheckpointWriter() = default;

absl::StatusOr<std::unique_ptr<CheckpointWriter>> CheckpointWriter::Open(
    CheckpointWriterOptions options) {
  NSA_ASSIGN_OR_RETURN(Folder checkpoints, options.out_dir.MakeFolder(CheckpointsDir("").string()));
  NSA_RETURN_IF_ERROR(options.out_dir.Sync());  // so that the name survives a power loss
  FileLock lock;
  if (options.rank == 0) {
    NSA_ASSIGN_OR_RETURN(lock, LockOutDir(checkpoints, options.generation));
    RemoveTemporaryFolders(checkpoints, std::numeric_limits<int64_t>::max());
    NSA_RETURN_IF_ERROR(RepairLatestLink(checkpoints));
  }
  return std::unique_ptr<CheckpointWriter>(new CheckpointWriter(
      std::make_unique<Impl>(std::move(options), std::move(checkpoints), std::move(lock))));
}

// Main path 7/7: checkpoint.
absl::Status CheckpointWriter::Save(const TrainingState& tensors, v1::CheckpointState state,
                                    const SaveOptions& how) {
  return impl_->Save(tensors, std::move(state), how);
}
absl::Status CheckpointWriter::Drain() { return impl_->Drain(); }
std::optional<absl::Status> CheckpointWriter::DrainFor(absl::Duration patience) {
  return impl_->DrainFor(patience);
}
void CheckpointWriter::Abandon(std::string_view why) { impl_->Abandon(why); }

}  // namespace nsa::train
