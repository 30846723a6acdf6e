#include "worker/train/comm/gradient_reducer.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cuda/side.h"
#include "kernels/optimizer/step.h"

namespace nsa::train {
namespace {

constexpr char kName[] = "all_reduce_gradients ";
// Above the step's stream: the other ranks wait for the sums.
constexpr int32_t kPriority = cuda::Side::kMainPriority + 1;

}  // namespace

std::optional<Bucket> BucketCutter::Ready(int64_t begin) {
  if (begin > 0 && end_ - begin < least_) return std::nullopt;
  const Bucket bucket = {begin, end_};
  end_ = begin > 0 ? begin : size_;
  return bucket;
}

absl::StatusOr<std::unique_ptr<GradientReducer>> GradientReducer::Create(NcclComm* comm,
                                                                         std::span<float> values,
                                                                         int64_t size,
                                                                         int64_t bucket_elements) {
  std::unique_ptr<GradientReducer> reducer(
      new GradientReducer(comm, values, size, bucket_elements));
  NSA_ASSIGN_OR_RETURN(reducer->stream_, cuda::Stream::Create(kPriority));
  NSA_ASSIGN_OR_RETURN(reducer->ready_, cuda::Event::Create());
  NSA_ASSIGN_OR_RETURN(reducer->done_, cuda::Event::Create());
  NSA_ASSIGN_OR_RETURN(reducer->in_flight_,
                       cuda::PinnedMemory::Allocate(sizeof(int32_t), "the mark of the reduction"));
  return reducer;
}

absl::Status GradientReducer::MarkInFlight(int32_t number) {
  Exec exec;
  exec.backend = Backend::kCuda;
  exec.stream = stream_.get();
  return cuda::Mark(exec, {.word = static_cast<int32_t*>(in_flight_.data()), .value = number});
}

absl::Status GradientReducer::Sum(void* stream, const Bucket& bucket) {
  NSA_RETURN_IF_ERROR(ready_.Record(stream));
  NSA_RETURN_IF_ERROR(ready_.Wait(stream_.get()));
  NSA_RETURN_IF_ERROR(MarkInFlight(++next_));
  return comm_->AllReduceSum(absl::StrCat(kName, next_), values_.data() + bucket.begin,
                             bucket.end - bucket.begin, stream_.get());
}

absl::Status GradientReducer::Ready(void* stream, int64_t begin) {
  const std::optional<Bucket> bucket = cutter_.Ready(begin);
  return bucket.has_value() ? Sum(stream, *bucket) : absl::OkStatus();
}

absl::Status GradientReducer::Finish(void* stream) {
  if (next_ == 0 || cutter_.open()) {
    return absl::FailedPreconditionError(
        "gradients: their sum ends before all of them are final; call Ready(stream, 0) first");
  }
  NSA_RETURN_IF_ERROR(Sum(stream, {size_, static_cast<int64_t>(values_.size())}));
  buckets_ = std::exchange(next_, 0);
  NSA_RETURN_IF_ERROR(MarkInFlight(0));
  NSA_RETURN_IF_ERROR(done_.Record(stream_.get()));
  return done_.Wait(stream);
}

void GradientReducer::Show(StatusPage* page) {
  const int32_t now = std::atomic_ref<int32_t>(*static_cast<int32_t*>(in_flight_.data()))
                          .load(std::memory_order_acquire);
  if (now != shown_ || now == 0) comm_->Touch();
  if (now == shown_) return;
  shown_ = now;
  now == 0 ? page->LeaveCollective()
           : page->EnterCollective(absl::StrCat(kName, now, "/", buckets_));
}

}  // namespace nsa::train
