#include "worker/train/checkpoint/upload/uploader.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/base/thread_name.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "worker/train/checkpoint/upload/checkpoint_store.h"

namespace nsa::train {
namespace {

// A checkpoint, here or in the store, and what retention decides by.
struct Kept {
  int64_t step = 0;
  std::optional<double> val_loss;
  bool pinned = false;
};

// The steps that retention keeps. `all` is oldest first. Pure.
std::set<int64_t> StepsToKeep(const std::vector<Kept>& all, int32_t keep) {
  const Kept* best = nullptr;
  for (const Kept& one : all) {
    if (one.val_loss && (best == nullptr || *one.val_loss < *best->val_loss)) best = &one;
  }
  std::set<int64_t> steps;
  for (size_t i = 0; i < all.size(); ++i) {
    const Kept& one = all[i];
    if (RetentionKeeps(all.size() - 1 - i, keep, one.pinned, &one == best)) steps.insert(one.step);
  }
  return steps;
}

}  // namespace

class Uploader::Impl {
 public:
  explicit Impl(UploaderOptions options) : options_(std::move(options)) {
    const std::vector<Kept> local = Local();
    if (!local.empty()) newest_ = local.back().step;
    progress_at_ = RealClock().Monotonic();
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

  void Published(int64_t step) {
    const MutexLock lock(&mutex_);
    newest_ = step;
    done_.erase(step);  // an earlier run to this step may have been uploaded
    work_ = true;
    idle_ = false;
    changed_.SignalAll();
  }

  bool MayDelete(int64_t step) const {
    const MutexLock lock(&mutex_);
    return !done_.empty() && step <= *done_.rbegin();
  }

  bool UpToDate() const {
    const MutexLock lock(&mutex_);
    return idle_;
  }

  absl::Duration progress_at() const {
    const MutexLock lock(&mutex_);
    return progress_at_;
  }

 private:
  void Run() {
    NameThread("upload");
    absl::Duration pause = options_.first_pause;
    while (Await(absl::InfiniteDuration())) {
      while (!UploadAll().ok()) {
        if (!Await(pause)) return;
        pause = std::min(2 * pause, options_.longest_pause);
      }
      pause = options_.first_pause;
      const MutexLock lock(&mutex_);
      idle_ = !work_;
    }
  }

  // Waits until a checkpoint is published, or for `time`; false when the thread must end.
  bool Await(absl::Duration time) {
    const RealClock clock;
    const absl::Duration end = clock.Monotonic() + time;
    const MutexLock lock(&mutex_);
    while (!work_ && !ending_ && clock.Monotonic() < end) {
      changed_.WaitFor(&mutex_, std::min(end - clock.Monotonic(), absl::Hours(1)));
    }
    work_ = false;
    return !ending_;
  }

  // The checkpoints of this job in out_dir, up to the newest that was published.
  std::vector<Kept> Local() const {
    std::vector<Kept> found;
    const auto entries = CheckpointsIn(options_.checkpoints.fixed_path());
    if (!entries.ok()) return found;
    const int64_t newest = Newest();
    for (const CheckpointEntry& entry : *entries) {
      const auto state = ReadCheckpointState(entry.path);
      if (!state.ok() || state->job_id() != options_.job_id) continue;
      if (newest > 0 && entry.step > newest) continue;
      std::error_code ignored;
      found.push_back({.step = entry.step,
                       .val_loss = ValLossAt(*state),
                       .pinned = std::filesystem::exists(entry.path / kPinnedFile, ignored)});
    }
    return found;
  }

  int64_t Newest() const {
    const MutexLock lock(&mutex_);
    return newest_;
  }

  // The newest checkpoint that retention keeps here and that has not been uploaded.
  std::optional<int64_t> Next() const {
    const std::vector<Kept> local = Local();
    const std::set<int64_t> keep = StepsToKeep(local, options_.keep);
    const MutexLock lock(&mutex_);
    for (auto step = keep.rbegin(); step != keep.rend(); ++step) {
      if (!done_.contains(*step)) return *step;
    }
    return std::nullopt;
  }

  // Uploads what is missing there, then deletes there what retention no longer keeps.
  absl::Status UploadAll() {
    std::optional<int64_t> step = Next();
    if (!step) return absl::OkStatus();
    absl::Duration begin = RealClock().Monotonic();
    const auto store =
        CheckpointStore::Open(options_.url, options_.job_id, options_.patience, &ending_);
    absl::Status status = store.status();
    for (; status.ok() && step; step = Next()) {
      const absl::StatusOr<int64_t> bytes = Upload(**store, *step);
      status = bytes.status();
      // Retention may have deleted it meanwhile.
      if (!status.ok() && !options_.checkpoints.Has(CheckpointName(*step))) {
        status = absl::OkStatus();
        continue;
      }
      if (!status.ok()) break;
      Done(*step);
      Report(*step, (*store)->NameOf(*step), *bytes, begin, status);
      begin = RealClock().Monotonic();
      status = Retain(**store);
    }
    if (status.ok() || ending_) return status;
    Report(step.value_or(Newest()), options_.url, 0, begin, status);
    return status;
  }

  // Returns its size. What the store has already, of an earlier process, is not uploaded again.
  absl::StatusOr<int64_t> Upload(CheckpointStore& store, int64_t step) {
    const std::string name = CheckpointName(step);
    NSA_ASSIGN_OR_RETURN(const v1::CheckpointState local,
                         ReadCheckpointState(options_.checkpoints.fixed_path() / name));
    const absl::StatusOr<v1::CheckpointState> there = store.State(step);
    if (there.ok() && there->state_xxh3_128() == local.state_xxh3_128()) {
      int64_t bytes = 0;
      for (const v1::CheckpointFile& file : local.files()) bytes += file.bytes();
      return bytes;
    }
    return store.Upload(options_.checkpoints, step, [this] { Progress(); });
  }

  void Progress() {
    const MutexLock lock(&mutex_);
    progress_at_ = RealClock().Monotonic();
  }

  void Done(int64_t step) {
    const MutexLock lock(&mutex_);
    if (step <= newest_) done_.insert(step);
    progress_at_ = RealClock().Monotonic();
    changed_.SignalAll();
  }

  // What an upload that was given up has left goes too. A pin here is one there, also when it was
  // set or removed after the upload.
  absl::Status Retain(CheckpointStore& store) {
    NSA_ASSIGN_OR_RETURN(std::vector<StoredCheckpoint> stored, store.List());
    const std::vector<Kept> local = Local();
    const int64_t newest = Newest();
    std::erase_if(stored, [&](const auto& one) { return one.step > newest; });
    std::vector<Kept> all;
    for (const StoredCheckpoint& one : stored) {
      if (!one.complete) continue;
      Kept kept = {.step = one.step, .pinned = one.files.contains(kPinnedFile)};
      if (const auto here = std::ranges::find(local, one.step, &Kept::step); here != local.end()) {
        if (here->pinned != kept.pinned) {
          NSA_RETURN_IF_ERROR(store.SetPinned(one.step, here->pinned));
        }
        kept = *here;
      } else {
        NSA_ASSIGN_OR_RETURN(const v1::CheckpointState state, store.State(one.step));
        kept.val_loss = ValLossAt(state);
      }
      all.push_back(kept);
    }
    const std::set<int64_t> keep = StepsToKeep(all, options_.keep);
    const std::set<int64_t> to_upload = StepsToKeep(local, options_.keep);
    for (const StoredCheckpoint& one : stored) {
      const std::set<int64_t>& left = one.complete ? keep : to_upload;
      if (!left.contains(one.step)) NSA_RETURN_IF_ERROR(store.Remove(one));
    }
    return absl::OkStatus();
  }

  void Report(int64_t step, const std::string& url, int64_t bytes, absl::Duration begin,
              const absl::Status& status) {
    v1::UploadRecord record;
    record.set_step(step);
    record.set_url(url);
    record.set_bytes(bytes);
    record.set_seconds(absl::ToDoubleSeconds(RealClock().Monotonic() - begin));
    record.set_error(std::string(status.message()));
    if (options_.on_record) options_.on_record(record);
    if (status.ok() == !failing_) return;
    failing_ = !status.ok();
    v1::WorkerEvent event;
    event.set_reason(
        Word(failing_ ? Reason::kCheckpointUploadFailed : Reason::kCheckpointUploadRestored));
    event.set_severity(failing_ ? v1::SEVERITY_WARNING : v1::SEVERITY_INFO);
    event.set_text(failing_ ? absl::StrCat(CheckpointName(step), ": ", status.message(),
                                           "; it stays in out_dir and is tried again, training "
                                           "continues")
                            : absl::StrCat(url, ": uploads succeed again"));
    if (options_.on_event) options_.on_event(event);
  }

  const UploaderOptions options_;
  bool failing_ = false;  // used by the thread only
  std::atomic<bool> ending_{false};
  mutable Mutex mutex_;
  CondVar changed_;
  int64_t newest_ ABSL_GUARDED_BY(mutex_) = 0;      // step; 0: none
  std::set<int64_t> done_ ABSL_GUARDED_BY(mutex_);  // steps that are in the store
  bool work_ ABSL_GUARDED_BY(mutex_) = true;
  bool idle_ ABSL_GUARDED_BY(mutex_) = false;  // nothing is left to do
  absl::Duration progress_at_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

Uploader::Uploader(UploaderOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Uploader::~Uploader() = default;
void Uploader::Published(int64_t step) { impl_->Published(step); }
bool Uploader::MayDelete(int64_t step) const { return impl_->MayDelete(step); }
bool Uploader::UpToDate() const { return impl_->UpToDate(); }
absl::Duration Uploader::progress_at() const { return impl_->progress_at(); }

}  // namespace nsa::train
