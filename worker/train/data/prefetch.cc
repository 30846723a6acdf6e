#include "worker/train/data/prefetch.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/base/thread_name.h"

namespace nsa::train {
namespace {

// How long the destructor waits for the thread.
constexpr absl::Duration kPatience = absl::Seconds(1);

// The error at a step for which too few rows are left. Data that is too little for one step is
// wrong data; the loader knows that before unless it reads in passing.
absl::Status Exhaustion(const DataPosition& position, int64_t rows, int64_t needed) {
  const int64_t used = position.epoch > 0 ? rows : position.sequence;
  if (used == 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("data.path: %d rows (a step takes %d, and data.on_exhausted is stop); add "
                        "text or use a smaller batch",
                        rows, needed));
  }
  return ReasonError(
      absl::StatusCode::kOutOfRange, Reason::kDataExhausted,
      absl::StrFormat("%d of %d rows used, a step takes %d (data.on_exhausted: stop)", used, rows,
                      needed));
}

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
  shared_->maker.source().Cancel();
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
  RowSource& source = shared->maker.source();
  DataPosition position = options.start;
  int32_t micro = options.micro_step;
  while (true) {
    const int64_t needed = int64_t{1} * options.batch_size * options.micro_steps;
    if (options.stop_at_end && micro == 0) {
      const absl::StatusOr<int64_t> rows = source.RowsUpTo(position.sequence + needed);
      if (!rows.ok()) return shared->End(rows.status());
      const bool too_few = position.epoch > 0 || position.sequence + needed > *rows;
      if (too_few) return shared->End(Exhaustion(position, *rows, needed));
    }
    absl::StatusOr<Batch> batch = shared->maker.Make(position);
    if (!batch.ok()) return shared->End(batch.status());
    position = Advance(position, options.batch_size, shared->maker.rows());
    micro = (micro + 1) % options.micro_steps;
    absl::Status passed = source.PassTo(position.sequence);
    if (!passed.ok()) return shared->End(std::move(passed));
    if (!shared->Put({*std::move(batch), position, source.Marks(position.sequence)})) return;
  }
}

// Waits until there is a batch, or it is known that there will be none.
absl::Status Prefetcher::Await(absl::Duration timeout, const std::function<void()>& on_progress) {
  constexpr absl::Duration kLook = absl::Seconds(1);  // between looks at the progress
  const RealClock clock;
  const RowSource& source = shared_->maker.source();
  int64_t seen = source.progress();
  absl::Duration deadline = clock.Monotonic() + timeout;
  const MutexLock lock(&shared_->mutex);
  while (shared_->ready.empty() && !shared_->ended) {
    const absl::Duration now = clock.Monotonic();
    if (const int64_t progress = source.progress(); progress != seen) {
      seen = progress;
      deadline = now + timeout;
      if (on_progress) on_progress();
    }
    if (deadline <= now) {
      return ReasonError(
          absl::StatusCode::kDeadlineExceeded, Reason::kDataStalled,
          absl::StrFormat(
              "no batch for %s (data.loader_timeout_seconds); does the file system respond?",
              absl::FormatDuration(timeout)));
    }
    shared_->changed.WaitFor(&shared_->mutex, std::min(deadline - now, kLook));
  }
  return absl::OkStatus();
}

absl::StatusOr<Prefetcher::Item> Prefetcher::Next(absl::Duration timeout,
                                                  const std::function<void()>& on_progress) {
  NSA_RETURN_IF_ERROR(Await(timeout, on_progress));
  const MutexLock lock(&shared_->mutex);
  if (shared_->ready.empty()) return *shared_->ended;
  Item item = std::move(shared_->ready.front());
  shared_->ready.pop_front();
  shared_->changed.SignalAll();
  return item;
}

bool Prefetcher::Exhausted(absl::Duration timeout, const std::function<void()>& on_progress) {
  if (!Await(timeout, on_progress).ok()) return false;
  const MutexLock lock(&shared_->mutex);
  return shared_->ready.empty() && ReasonOf(*shared_->ended) == Reason::kDataExhausted;
}

}  // namespace nsa::train
