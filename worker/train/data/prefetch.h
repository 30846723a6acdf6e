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
  int32_t micro_step = 0;    // of the step that the first batch belongs to
  int32_t micro_steps = 1;   // micro-batches of a step
  int32_t batch_size = 1;    // rows a micro-batch takes over all ranks
  bool stop_at_end = false;  // on_exhausted: stop
};

// One caller at a time.
class Prefetcher {
 public:
  static constexpr size_t kAhead = 4;  // batches

  Prefetcher(PrefetchOptions options, BatchMaker maker);

  // Ends the thread; one that is stuck in the source is left behind (what it uses is shared).
  ~Prefetcher();

  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  struct Item {
    Batch batch;
    DataPosition after;
  };

  // The next batch. The source's error, again at every call; OutOfRange with DATA_EXHAUSTED;
  // DeadlineExceeded with DATA_STALLED.
  absl::StatusOr<Item> Next(absl::Duration timeout);

 private:
  struct Shared;
  static void Run(const std::shared_ptr<Shared>& shared);

  const std::shared_ptr<Shared> shared_;  // owners: this object and the thread
};

}  // namespace nsa
