#include "worker/train/data/prefetch.h"

#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/reason.h"
#include "common/base/thread_name.h"

namespace nsa::train {
namespace {

// How long the destructor waits for the thread.
constexpr absl::Duration kPatience = absl::Seconds(1);

}  // namespace

struct Prefetcher::Shared {
  Shared(PrefetchOptions o, BatchMaker m) : options(o), maker(std::move(m)) {}

  const PrefetchOptions options;
  const BatchMaker maker;
  Mutex mutex;
  CondVar changed;
  std::deque<Item> ready ABSL_GUARDED_BY(mutex);
  // Set when no batch follows those in `ready`.
  std::optional<absl::Status> ended ABSL_GUARDED_BY(mutex);
  bool cancelled ABSL_GUARDED_BY(mutex) = false;
  bool finished ABSL_GUARDED_BY(mutex) = false;  // the thread will not use the source again

  // False if the thread must end.
  bool Put(Item item) {
    const MutexLock lock(&mutex);
    while (ready.size() >= kAhead && !cancelled) changed.Wait(&mutex);
    ready.push_back(std::move(item));
    changed.SignalAll();
    return !cancelled;
  }

  void End(absl::Status status) {
    const MutexLock lock(&mutex);
    ended = std::move(status);
    changed.SignalAll();
  }
};

Prefetcher::Prefetcher(PrefetchOptions options, BatchMaker maker)
    : shared_(std::make_shared<Shared>(options, std::move(maker))) {
  // Detached, because it may hang in the source forever; it shares ownership of what it uses.
  std::thread([shared = shared_] {
    NameThread("prefetch");
    Run(shared);
    const MutexLock lock(&shared->mutex);
    shared->finished = true;
    shared->changed.SignalAll();
  }).detach();
}

Prefetcher::~Prefetcher() {
  const MutexLock lock(&shared_->mutex);
  shared_->cancelled = true;
  shared_->changed.SignalAll();
  bool expired = false;
  while (!shared_->finished && !expired) {
    expired = shared_->changed.WaitFor(&shared_->mutex, kPatience);
  }
}

void Prefetcher::Run(const std::shared_ptr<Shared>& shared) {
  const PrefetchOptions& options = shared->options;
  const int64_t rows = shared->maker.rows();
  DataPosition position = options.start;
  int32_t micro = options.micro_step;
  while (true) {
    const int64_t needed = int64_t{1} * options.batch_size * options.micro_steps;
    const bool too_few = position.epoch > 0 || position.sequence + needed > rows;
    if (options.stop_at_end && micro == 0 && too_few) {
      shared->End(ReasonError(
          absl::StatusCode::kOutOfRange, Reason::kDataExhausted,
          absl::StrFormat("%d of %d rows used, a step takes %d (data.on_exhausted: stop)",
                          position.epoch > 0 ? rows : position.sequence, rows, needed)));
      return;
    }
    absl::StatusOr<Batch> batch = shared->maker.Make(position);
    if (!batch.ok()) {
      shared->End(batch.status());
      return;
    }
    position = Advance(position, options.batch_size, rows);
    micro = (micro + 1) % options.micro_steps;
    if (!shared->Put({*std::move(batch), position})) return;
  }
}

absl::StatusOr<Prefetcher::Item> Prefetcher::Next(absl::Duration timeout) {
  const RealClock clock;
  const absl::Duration deadline = clock.Monotonic() + timeout;
  const MutexLock lock(&shared_->mutex);
  while (shared_->ready.empty() && !shared_->ended) {
    const absl::Duration left = deadline - clock.Monotonic();
    if (left <= absl::ZeroDuration()) {
      return ReasonError(
          absl::StatusCode::kDeadlineExceeded, Reason::kDataStalled,
          absl::StrFormat(
              "no batch for %s (data.loader_timeout_seconds); does the file system respond?",
              absl::FormatDuration(timeout)));
    }
    shared_->changed.WaitFor(&shared_->mutex, left);
  }
  if (shared_->ready.empty()) return *shared_->ended;
  Item item = std::move(shared_->ready.front());
  shared_->ready.pop_front();
  shared_->changed.SignalAll();
  return item;
}

}  // namespace nsa::train
