#include "worker/train/comm/gradient_reducer.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/cuda/side.h"
#include "kernels/nn/copy.h"
#include "kernels/optimizer/step.h"

namespace nsa::train {
namespace {

constexpr char kAllReduce[] = "all_reduce_gradients ";
constexpr char kReduce[] = "reduce_gradients ";
constexpr char kGather[] = "gather_weights";
constexpr char kNorm[] = "gradient_norm";
constexpr char kCheckpoint[] = "checkpoint";
// Marks of what follows the sums of a step.
constexpr int32_t kNormMark = 1 << 29;
constexpr int32_t kCheckpointMark = kNormMark + 1;
constexpr int32_t kGatherMark = 1 << 30;
// Above the step's stream: the other ranks wait for the sums.
constexpr int32_t kPriority = cuda::Side::kMainPriority + 1;

Exec ExecOf(void* stream) {
  Exec exec;
  exec.backend = Backend::kCuda;
  exec.stream = stream;
  return exec;
}

}  // namespace

std::vector<Piece> PiecesOf(const Bucket& bucket, std::span<const int64_t> cuts, int64_t most) {
  std::vector<Piece> pieces;
  const auto add = [&](int64_t begin, int64_t end, int root) {
    for (; begin < end; begin += most) pieces.push_back({begin, std::min(begin + most, end), root});
  };
  if (cuts.empty()) add(bucket.begin, bucket.end, Piece::kEveryRank);
  for (size_t r = 0; r + 1 < cuts.size(); ++r) {
    add(std::max(bucket.begin, cuts[r]), std::min(bucket.end, cuts[r + 1]), static_cast<int>(r));
  }
  return pieces;
}

std::optional<Bucket> BucketCutter::Ready(int64_t begin) {
  if (begin > 0 && end_ - begin < least_) return std::nullopt;
  const Bucket bucket = {begin, end_};
  end_ = begin > 0 ? begin : size_;
  return bucket;
}

absl::StatusOr<std::unique_ptr<GradientReducer>> GradientReducer::Create(
    NcclComm* comm, std::span<float> values, int64_t size, int64_t bucket_elements,
    const SumOptions& options) {
  std::unique_ptr<GradientReducer> reducer(
      new GradientReducer(comm, values, size, bucket_elements, options));
  NSA_ASSIGN_OR_RETURN(reducer->stream_, cuda::Stream::Create(kPriority));
  NSA_ASSIGN_OR_RETURN(reducer->ready_, cuda::Event::Create());
  NSA_ASSIGN_OR_RETURN(reducer->done_, cuda::Event::Create());
  for (cuda::Event& done : reducer->window_done_) {
    NSA_ASSIGN_OR_RETURN(done, cuda::Event::Create());
  }
  NSA_ASSIGN_OR_RETURN(reducer->read_, cuda::Event::Create());
  for (cuda::Event& gathered : reducer->gathered_) {
    NSA_ASSIGN_OR_RETURN(gathered, cuda::Event::Create());
  }
  NSA_ASSIGN_OR_RETURN(reducer->in_flight_,
                       cuda::PinnedMemory::Allocate(sizeof(int32_t), "the mark of the reduction"));
  if (options.bf16) {
    NSA_ASSIGN_OR_RETURN(reducer->rounded_,
                         cuda::DeviceMemory::Allocate(2 * bucket_elements, "gradients in bf16"));
  }
  return reducer;
}

absl::Status GradientReducer::MarkInFlight(void* stream, int32_t number) {
  return cuda::Mark(ExecOf(stream),
                    {.word = static_cast<int32_t*>(in_flight_.data()), .value = number});
}

absl::Status GradientReducer::SumPiece(void* lane, std::span<float> values, int root, bool bf16) {
  const auto size = static_cast<int64_t>(values.size());
  const Tensor rounded(rounded_.data(), size, DType::kBf16);
  const bool everybody = root == Piece::kEveryRank;
  const std::string name = absl::StrCat(everybody ? kAllReduce : kReduce, next_);
  NcclValues sent = {.data = values.data(), .count = size};
  if (bf16) {
    NSA_RETURN_IF_ERROR(Convert(ExecOf(lane), values, rounded));
    sent = {.data = rounded.data, .count = size, .type = NcclValues::Type::kBfloat16};
  }
  NSA_RETURN_IF_ERROR(everybody ? comm_->AllReduceSum(name, sent, lane)
                                : comm_->ReduceSum(name, sent, root, lane));
  if (!bf16 || !(everybody || root == comm_->rank())) return absl::OkStatus();
  return Convert(ExecOf(lane), rounded, values);
}

// Sums the elements from `first` on over the ranks. Between sums no bucket is in flight: a rank
// that computes waits for nobody.
absl::Status GradientReducer::Sum(void* stream, std::span<float> values, int64_t first,
                                  bool extras) {
  void* const lane = Lane(stream);
  NSA_RETURN_IF_ERROR(ready_.Record(stream));
  NSA_RETURN_IF_ERROR(ready_.Wait(lane));
  const bool bf16 = options_.bf16 && !extras;
  const auto size = static_cast<int64_t>(values.size());
  const std::span<const int64_t> cuts = extras ? std::span<const int64_t>() : options_.cuts;
  for (const Piece& piece : PiecesOf({first, first + size}, cuts, bf16 ? bucket_elements_ : size)) {
    NSA_RETURN_IF_ERROR(MarkInFlight(lane, ++next_));
    NSA_RETURN_IF_ERROR(SumPiece(lane, values.subspan(piece.begin - first, piece.end - piece.begin),
                                 piece.root, bf16));
  }
  return MarkInFlight(lane, 0);
}

absl::Status GradientReducer::Ready(void* stream, int64_t begin) {
  const std::optional<Bucket> bucket = cutter_.Ready(begin);
  if (!bucket.has_value()) return absl::OkStatus();
  return Sum(stream, values_.subspan(bucket->begin, bucket->end - bucket->begin), bucket->begin);
}

absl::Status GradientReducer::AwaitWindow(void* stream, bool first) {
  if (windows_ < (first ? 1 : 2)) return absl::OkStatus();
  // Sums run one after another: the last one done, all are.
  return window_done_[(windows_ + (first ? 1 : 0)) % 2].Wait(stream);
}

// Copies or adds the sums of this rank's share out of the window.
absl::Status GradientReducer::TakeShare(void* lane, const WindowSum& sum) {
  const int64_t own = options_.cuts[comm_->rank()];
  const int64_t begin = std::max(own, sum.first);
  const int64_t end = std::min(options_.cuts[comm_->rank() + 1],
                               sum.first + static_cast<int64_t>(sum.values.size()));
  if (begin >= end) return absl::OkStatus();
  const std::span<float> from = sum.values.subspan(begin - sum.first, end - begin);
  const std::span<float> to = sum.share.subspan(begin - own, end - begin);
  return sum.add ? AddTo(ExecOf(lane), from, to) : Copy(ExecOf(lane), from, to);
}

absl::Status GradientReducer::SumWindow(void* stream, const WindowSum& sum) {
  void* const lane = Lane(stream);
  NSA_RETURN_IF_ERROR(Sum(stream, sum.values, sum.first));
  NSA_RETURN_IF_ERROR(TakeShare(lane, sum));
  return window_done_[windows_++ % 2].Record(lane);
}

absl::Status GradientReducer::Gather(void* stream, int turn, std::span<const NcclPiece> pieces) {
  void* const lane = Lane(stream);
  NSA_RETURN_IF_ERROR(read_.Record(stream));
  NSA_RETURN_IF_ERROR(read_.Wait(lane));
  NSA_RETURN_IF_ERROR(MarkInFlight(lane, kGatherMark));
  NSA_RETURN_IF_ERROR(comm_->Broadcast(kGather, pieces, lane));
  NSA_RETURN_IF_ERROR(MarkInFlight(lane, 0));
  return gathered_[turn].Record(lane);
}

absl::Status GradientReducer::AwaitGather(void* stream, int turn) {
  return gathered_[turn].Wait(stream);
}

absl::Status GradientReducer::Finish(void* stream) {
  if (next_ == 0 || cutter_.open()) {
    return absl::FailedPreconditionError(
        "gradients: their sum ends before all of them are final; call Ready(stream, 0) first");
  }
  const int64_t gradients = options_.windows ? 0 : size_;
  NSA_RETURN_IF_ERROR(Sum(stream, values_.subspan(gradients), gradients, /*extras=*/true));
  buckets_ = std::exchange(next_, 0);
  NSA_RETURN_IF_ERROR(done_.Record(Lane(stream)));
  return done_.Wait(stream);
}

absl::Status GradientReducer::ShareSquareSums(void* stream, double* sums) {
  NSA_RETURN_IF_ERROR(MarkInFlight(stream, kNormMark));
  NSA_RETURN_IF_ERROR(comm_->AllReduceSum(
      kNorm, {.data = sums, .count = comm_->world_size(), .type = NcclValues::Type::kFloat64},
      stream));
  return MarkInFlight(stream, 0);
}

absl::Status GradientReducer::GatherWeights(void* stream, std::byte* weights) {
  constexpr int64_t kBytes = 2;  // of a bf16 value
  int32_t mark = kGatherMark;
  for (const Piece& piece : PiecesOf({0, size_}, options_.cuts, size_)) {
    std::byte* const place = weights + kBytes * piece.begin;
    NSA_RETURN_IF_ERROR(MarkInFlight(stream, mark++));
    NSA_RETURN_IF_ERROR(comm_->Broadcast(kGather, place, place, kBytes * (piece.end - piece.begin),
                                         piece.root, stream));
  }
  return MarkInFlight(stream, 0);
}

absl::Status GradientReducer::SendPiece(void* stream, const void* from, void* to, int64_t bytes,
                                        int root) {
  NSA_RETURN_IF_ERROR(MarkInFlight(stream, kCheckpointMark));
  NSA_RETURN_IF_ERROR(comm_->Broadcast(kCheckpoint, from, to, bytes, root, stream));
  return MarkInFlight(stream, 0);
}

void GradientReducer::Show(StatusPage* page) {
  const int32_t now = std::atomic_ref<int32_t>(*static_cast<int32_t*>(in_flight_.data()))
                          .load(std::memory_order_acquire);
  if (now != shown_ || now == 0) comm_->Touch();
  if (now == shown_) return;
  shown_ = now;
  if (now == 0) return page->LeaveCollective();
  if (now >= kGatherMark) return page->EnterCollective(kGather);
  if (now == kCheckpointMark) return page->EnterCollective(kCheckpoint);
  if (now == kNormMark) return page->EnterCollective(kNorm);
  page->EnterCollective(
      absl::StrCat(options_.cuts.empty() ? kAllReduce : kReduce, now, "/", buckets_));
}

}  // namespace nsa::train
