// Makes batches in a thread, ahead of the training thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/train/data/batches.h"

namespace nsa::train {

struct PrefetchOptions {
  DataPosition start;
  int32_t micro_step = 0;    // index of the first batch within its step
  int32_t micro_steps = 1;   // micro-batches in a step
  int32_t batch_size = 1;    // rows in a micro-batch, over all ranks
  bool stop_at_end = false;  // on_exhausted: stop
};

// Only one thread at a time may use a Prefetcher.
class Prefetcher {
 public:
  static constexpr size_t kAhead = 4;  // batches

  Prefetcher(PrefetchOptions options, BatchMaker maker);

  // Ends the thread. If the thread hangs in the source, the destructor leaves it running after one
  // second; the thread shares ownership of everything that it uses.
  ~Prefetcher();

  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  struct Item {
    Batch batch;
    DataPosition after;
    std::vector<SourceMark> marks;  // RowSource::Marks() after the batch
  };

  // The next batch. An error of the source is returned again by every later call. OutOfRange with
  // Reason::kDataExhausted; DeadlineExceeded with Reason::kDataStalled when for `timeout` there was
  // none and the source made no progress. `on_progress` may be empty; it is called about once a
  // second while the source makes progress.
  absl::StatusOr<Item> Next(absl::Duration timeout, const std::function<void()>& on_progress = {});

  // Waits for what Next() will return; whether that is OutOfRange with Reason::kDataExhausted.
  bool Exhausted(absl::Duration timeout, const std::function<void()>& on_progress = {});

 private:
  struct Shared;
  static void Run(const std::shared_ptr<Shared>& shared);
  absl::Status Await(absl::Duration timeout, const std::function<void()>& on_progress);

  const std::shared_ptr<Shared> shared_;  // owners: this object and the thread
};

}  // namespace nsa::train
