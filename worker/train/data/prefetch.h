// Makes batches ahead of the training thread.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/train/data/batches.h"

namespace nsa {

struct PrefetchOptions {
  DataPosition start;
  int32_t micro_step = 0;    // index of the first batch within its step
  int32_t micro_steps = 1;   // micro-batches in a step
  int32_t batch_size = 1;    // rows in a micro-batch, over all ranks
  bool stop_at_end = false;  // on_exhausted: stop
};

// Only one thread may call it at a time.
class Prefetcher {
 public:
  static constexpr size_t kAhead = 4;  // batches

  Prefetcher(PrefetchOptions options, BatchMaker maker);

  // Ends the thread. A thread that hangs in the source is left behind; it shares ownership of what
  // it uses.
  ~Prefetcher();

  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  struct Item {
    Batch batch;
    DataPosition after;
  };

  // The next batch. An error of the source is returned again by every later call. OutOfRange with
  // Reason::kDataExhausted; DeadlineExceeded with Reason::kDataStalled.
  absl::StatusOr<Item> Next(absl::Duration timeout);

 private:
  struct Shared;
  static void Run(const std::shared_ptr<Shared>& shared);

  const std::shared_ptr<Shared> shared_;  // owners: this object and the thread
};

}  // namespace nsa
