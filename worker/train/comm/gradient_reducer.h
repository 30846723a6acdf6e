// Sums the gradients of all ranks on their GPUs while backward is still running. The flat gradients
// are cut into buckets from the end to the beginning, which are summed on a separate stream.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/run/status_page.h"
#include "kernels/cuda/device.h"
#include "worker/train/comm/nccl_comm.h"

namespace nsa::train {

// Elements [begin, end) of the flat gradients.
struct Bucket {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const Bucket&) const = default;
};

// Decides where one bucket ends and the next begins. The decision depends only on sizes and on the
// order in which backward finishes, so it is the same on all ranks and in every step.
class BucketCutter {
 public:
  // Cuts `size` elements into buckets of at least `least` elements; the last one may be smaller.
  BucketCutter(int64_t size, int64_t least) : size_(size), least_(least), end_(size) {}

  // All elements from `begin` on are final; `begin` decreases from call to call. Returns the bucket
  // to sum now, if there is one. `begin` 0 closes the last bucket and ends the step.
  std::optional<Bucket> Ready(int64_t begin);

  // Begins a step, even if the one before was not finished.
  void Reset() { end_ = size_; }

  // Whether a step has begun and not ended.
  bool open() const { return end_ < size_; }

 private:
  const int64_t size_;
  const int64_t least_;
  int64_t end_;  // elements before this are in no bucket yet
};

// One thread at a time.
class GradientReducer {
 public:
  static constexpr int64_t kBucketElements = int64_t{4} << 20;  // 16 MiB

  // `values`: `size` gradients, followed by a few extra values, in device memory. `values` and
  // `comm` outlive the reducer.
  static absl::StatusOr<std::unique_ptr<GradientReducer>> Create(
      NcclComm* comm, std::span<float> values, int64_t size,
      int64_t bucket_elements = kBucketElements);

  // Begins a step, even if the one before was not enqueued to its end because a capture failed.
  void Reset() {
    cutter_.Reset();
    next_ = 0;
  }

  // All gradients from `begin` on are final once `stream`, which may be capturing, reaches this
  // point. `begin` decreases from call to call, down to 0.
  absl::Status Ready(void* stream, int64_t begin);

  // To be called after Ready(stream, 0), when the extra values are final, too. What follows on
  // `stream` sees all sums.
  absl::Status Finish(void* stream);

  // Shows on `page` which bucket the GPU is summing. Restarts the communicator's timeout when the
  // bucket has changed, or when there is none, since the GPU is then not waiting for other ranks.
  void Show(StatusPage* page);

  // Collectives of a step, including the one for the extra values.
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
  cuda::Stream stream_;           // runs the sums, one after another
  cuda::Event ready_;             // a bucket's gradients are final
  cuda::Event done_;              // all sums of a step are done
  cuda::PinnedMemory in_flight_;  // number of the bucket being summed, from 1; 0: none
  int32_t next_ = 0;
  int32_t buckets_ = 0;
  int32_t shown_ = 0;
};

}  // namespace nsa::train
