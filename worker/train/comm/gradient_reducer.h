// Sums the gradients of all ranks on their GPUs while backward is still running. The flat gradients
// are cut into buckets from the end to the beginning, which are summed on a separate stream.
//
// Where each rank updates its share of the parameters only (worker/train/model/shares.h), the sums
// of a share go to its rank alone: for R ranks and N gradients, (R − 1) N values are sent in all
// instead of the 2 (R − 1) N of sums that everybody has. GatherWeights() then sends the new
// weights.
//
// Where each rank also keeps the gradients of its share only, they come a part of the model at a
// time, in memory that later parts reuse (worker/train/model/gradient_window.h): SumWindow() takes
// the place of Ready(), once for each part of each pass.
//
// Where each rank has the weights of its share only, Gather() brings those of a part together
// before it is computed with (worker/train/model/weight_window.h). It runs on the stream of the
// sums: operations of one communicator may not run at the same time, and all ranks enqueue them in
// one order.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

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

// A part of a bucket, which one collective sums.
struct Piece {
  static constexpr int kEveryRank = -1;
  int64_t begin = 0;
  int64_t end = 0;
  int root = kEveryRank;  // the rank that gets the sums
  bool operator==(const Piece&) const = default;
};

// Cuts a bucket at `cuts`, which are those of Shares, or, if there are none, nowhere; and further
// into pieces of at most `most` elements. In ascending order, without empty ones. Pure.
std::vector<Piece> PiecesOf(const Bucket& bucket, std::span<const int64_t> cuts, int64_t most);

// How gradients are summed.
struct SumOptions {
  std::vector<int64_t>
      cuts;  // rank r gets the sums from cuts[r] to cuts[r + 1]; empty: all get all
  // The gradients travel in bf16: each rank rounds its own to nearest even, and NCCL the sums.
  bool bf16 = false;
  // Gradients come by SumWindow(); with `cuts`.
  bool windows = false;
  // Windows are summed and gathered on the step's own stream instead of beside it, for a step with
  // other operations of NCCL.
  bool in_line = false;
};

// The gradients of a part of the model, and where the sums of a rank's share of them go.
struct WindowSum {
  std::span<float> values;  // elements from `first` on
  int64_t first = 0;
  std::span<float> share;  // elements from cuts[rank] on
  bool add = false;        // to what `share` has; otherwise the sums take its place
};

// One thread at a time.
class GradientReducer {
 public:
  static constexpr int64_t kBucketElements = int64_t{4} << 20;  // 16 MiB

  // `values`: `size` gradients, followed by a few extra values, in device memory; with
  // options.windows the extra values only. `values` and `comm` outlive the reducer.
  static absl::StatusOr<std::unique_ptr<GradientReducer>> Create(
      NcclComm* comm, std::span<float> values, int64_t size,
      int64_t bucket_elements = kBucketElements, const SumOptions& options = {});

  // Begins a step, even if the one before was not enqueued to its end because a capture failed.
  void Reset() {
    cutter_.Reset();
    next_ = 0;
    windows_ = 0;
  }

  // All gradients from `begin` on are final once `stream`, which may be capturing, reaches this
  // point. `begin` decreases from call to call, down to 0.
  absl::Status Ready(void* stream, int64_t begin);

  // To be called on `stream` before it makes the gradients of a window: what follows does so after
  // the sums of the window before the last, whose memory it takes. At the `first` window of a pass,
  // after those of all windows.
  absl::Status AwaitWindow(void* stream, bool first);

  // The window's gradients are final once `stream`, which may be capturing, reaches this point.
  absl::Status SumWindow(void* stream, const WindowSum& sum);

  // Brings the weights of a part together in one of two windows, `turn` 0 or 1, which what `stream`
  // was given so far is the last to read. `pieces` are those of all ranks. `stream` may be
  // capturing.
  absl::Status Gather(void* stream, int turn, std::span<const NcclPiece> pieces);

  // What follows on `stream` reads what the last Gather() of this turn has brought.
  absl::Status AwaitGather(void* stream, int turn);

  // To be called after Ready(stream, 0) or the last window, when the extra values are final, too.
  // What follows on `stream` sees all sums that this rank gets; those of the extra values, always
  // in fp32, are for all ranks.
  absl::Status Finish(void* stream);

  // After Finish(), on `stream`. sums[r] of rank r on every rank, r = 0, 1, …; in device memory,
  // where the other elements were 0.
  absl::Status ShareSquareSums(void* stream, double* sums);

  // After the update, on `stream`: every rank gets the share of each rank of `weights`, as many
  // bf16 values as there are gradients; in device memory.
  absl::Status GatherWeights(void* stream, std::byte* weights);

  // Between two steps, on `stream`: NcclComm::Broadcast() of a piece of a checkpoint.
  absl::Status SendPiece(void* stream, const void* from, void* to, int64_t bytes, int root);

  // Shows on `page` which bucket the GPU is summing. Restarts the communicator's timeout when the
  // bucket has changed, or when there is none, since the GPU is then not waiting for other ranks.
  void Show(StatusPage* page);

  // Sums of a step, including the one for the extra values.
  int32_t buckets() const { return buckets_; }

 private:
  GradientReducer(NcclComm* comm, std::span<float> values, int64_t size, int64_t bucket_elements,
                  const SumOptions& options)
      : comm_(comm),
        values_(values),
        size_(size),
        bucket_elements_(bucket_elements),
        options_(options),
        cutter_(size, bucket_elements) {}

  // Where sums and gathers run for `stream`, one after another.
  void* Lane(void* stream) const { return options_.in_line ? stream : stream_.get(); }
  absl::Status Sum(void* stream, std::span<float> values, int64_t first, bool extras = false);
  absl::Status SumPiece(void* lane, std::span<float> values, int root, bool bf16);
  absl::Status TakeShare(void* lane, const WindowSum& sum);
  absl::Status MarkInFlight(void* stream, int32_t number);

  NcclComm* const comm_;
  const std::span<float> values_;
  const int64_t size_;
  const int64_t bucket_elements_;
  const SumOptions options_;
  BucketCutter cutter_;
  cuda::Stream stream_;                     // runs sums and gathers, one after another
  cuda::DeviceMemory rounded_;              // bf16 [bucket_elements_], with options_.bf16
  cuda::Event ready_;                       // a bucket's gradients are final
  cuda::Event done_;                        // all sums of a step are done
  std::array<cuda::Event, 2> window_done_;  // the last two windows are summed, in turn
  cuda::Event read_;                        // weights are read for the last time
  std::array<cuda::Event, 2> gathered_;     // the weights in each of two windows are there
  int64_t windows_ = 0;                     // of this step
  cuda::PinnedMemory in_flight_;            // number of the bucket being summed, from 1; 0: none
  int32_t next_ = 0;
  int32_t buckets_ = 0;
  int32_t shown_ = 0;
};

}  // namespace nsa::train
