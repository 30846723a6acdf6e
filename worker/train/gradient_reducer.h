// Sums the gradients of all ranks on their GPUs while backward still computes: flat buckets, from
// the end of the arena to its beginning, on a stream of their own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/status_page.h"
#include "kernels/cuda/device.h"
#include "worker/train/nccl_comm.h"

namespace nsa {

// Elements [begin, end) of the flat gradients.
struct Bucket {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const Bucket&) const = default;
};

// Where one bucket ends and the next begins: a function of sizes and of the order in which backward
// finishes, so it is the same on all ranks and in every step.
class BucketCutter {
 public:
  // A bucket has at least `least` of the `size` elements, but for the last.
  BucketCutter(int64_t size, int64_t least) : size_(size), least_(least), end_(size) {}

  // All elements from `begin` on are final; `begin` only falls. Returns the bucket to sum now, if
  // there is one. After 0, which closes the last, the next step begins.
  std::optional<Bucket> Ready(int64_t begin);

  // A step begins; what an earlier one has left half done is forgotten.
  void Reset() { end_ = size_; }

  // Whether a step has begun and not ended.
  bool open() const { return end_ < size_; }

 private:
  const int64_t size_;
  const int64_t least_;
  int64_t end_;  // what is not in a bucket yet ends here
};

// One thread at a time.
class GradientReducer {
 public:
  static constexpr int64_t kBucketElements = int64_t{4} << 20;  // 16 MiB

  // `values` are `size` gradients and the few extras behind them, in device memory; they and `comm`
  // outlive the reducer.
  static absl::StatusOr<std::unique_ptr<GradientReducer>> Create(
      NcclComm* comm, std::span<float> values, int64_t size,
      int64_t bucket_elements = kBucketElements);

  // A step begins, also when the one before was not enqueued to its end: a capture that failed.
  void Reset() {
    cutter_.Reset();
    next_ = 0;
  }

  // In the order of `stream`, which may be capturing, all gradients from `begin` on are final;
  // `begin` only falls, to 0.
  absl::Status Ready(void* stream, int64_t begin);

  // The extras are final too, and what follows on `stream` sees all sums. After Ready(stream, 0).
  absl::Status Finish(void* stream);

  // Shows on `page` which bucket the GPU is at, and tells the communicator's wait when that has
  // changed or is none: other ranks have nothing to do with it then.
  void Show(StatusPage* page);

  // Collectives of a step, the extras' included.
  int32_t buckets() const { return buckets_; }

 private:
  GradientReducer(NcclComm* comm, std::span<float> values, int64_t size, int64_t bucket_elements)
      : comm_(comm), values_(values), size_(size), cutter_(size, bucket_elements) {}

  absl::Status Sum(void* stream, const Bucket& bucket);
  absl::Status MarkInFlight(int32_t number);

  NcclComm* const comm_;
  const std::span<float> values_;
  const int64_t size_;
  BucketCutter cutter_;
  cuda::Stream stream_;           // the sums, one behind another
  cuda::Event ready_;             // a bucket's gradients are final
  cuda::Event done_;              // all sums of a step
  cuda::PinnedMemory in_flight_;  // the bucket that the GPU is at, from 1; 0: none
  int32_t next_ = 0;
  int32_t buckets_ = 0;
  int32_t shown_ = 0;
};

}  // namespace nsa
