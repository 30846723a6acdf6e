// Collectives over a ring of TCP connections. An all-reduce is a reduce-scatter, then an
// all-gather: piece r is summed once around the ring, from the rank behind r to rank r, and the sum
// is passed on to all ranks. So the order of every sum is fixed, and all ranks get the same bits.
// An exchange in groups passes blocks on until they arrive: W − 1 hops, and a block is sent as
// often as its ranks are apart. It moves values and computes nothing.
#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/run/rank_address.h"
#include "kernels/dtype.h"
#include "worker/train/comm/comm.h"
#include "worker/train/comm/tcp_ring.h"

namespace nsa::train {
namespace {

template <class T>
std::span<const std::byte> Bytes(std::span<const T> values) {
  return std::as_bytes(values);
}

class TcpComm final : public Comm {
 public:
  TcpComm(int rank, int world_size, TcpRing ring)
      : rank_(rank), world_size_(world_size), ring_(std::move(ring)) {}

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  absl::Status CheckPeers() override { return ring_.Check(); }

 protected:
  absl::Status DoReduceScatterSum(std::span<float> values, std::span<const int64_t> cuts,
                                  Wire wire) override {
    if (wire == Wire::kF32) {
      return ReduceScatter<float>(values, cuts, [](float a, float b) { return a + b; });
    }
    std::vector<bf16> rounded(values.size());
    std::ranges::transform(values, rounded.begin(), [](float value) { return bf16(value); });
    NSA_RETURN_IF_ERROR(ReduceScatter<bf16>(rounded, cuts, [](bf16 a, bf16 b) {
      return bf16(static_cast<float>(a) + static_cast<float>(b));
    }));
    Widen(Piece<bf16>(rounded, cuts, rank_), Piece<float>(values, cuts, rank_));
    return absl::OkStatus();
  }

  absl::Status DoAllGather(std::span<float> values, std::span<const int64_t> cuts,
                           Wire wire) override {
    if (wire == Wire::kF32) return Gather<float>(values, cuts);
    std::vector<bf16> rounded(values.size());
    std::ranges::transform(Piece<float>(values, cuts, rank_),
                           Piece<bf16>(rounded, cuts, rank_).begin(),
                           [](float value) { return bf16(value); });
    NSA_RETURN_IF_ERROR(Gather<bf16>(rounded, cuts));
    Widen(rounded, values);
    return absl::OkStatus();
  }

  absl::Status DoAllReduce(Reduce reduce, std::span<double> values) override {
    switch (reduce) {
      case Reduce::kSum:
        return ReduceToAll(values, [](double a, double b) { return a + b; });
      case Reduce::kMin:
        return ReduceToAll(values, [](double a, double b) { return b < a ? b : a; });
      case Reduce::kMax:
        return ReduceToAll(values, [](double a, double b) { return b > a ? b : a; });
    }
    return absl::InvalidArgumentError("reduce: unknown (sum, min or max)");
  }

  absl::Status DoBroadcast(int root, std::span<std::byte> bytes) override {
    if (rank_ != root) NSA_RETURN_IF_ERROR(ring_.Transfer({}, bytes));
    if ((rank_ + 1) % world_size_ == root) return absl::OkStatus();
    return ring_.Transfer(bytes, {});
  }

  // The blocks travel along the ring, all ranks' at the same time: after h hops a rank has those of
  // the rank h before it that have not arrived, in the order in which they will, keeps the first if
  // it is its own, and sends the rest on.
  absl::Status DoExchangeInGroups(int group_size, std::span<const std::byte> send,
                                  std::span<std::byte> receive) override {
    const size_t block = send.size() / group_size;
    const int first = rank_ / group_size * group_size;
    const auto put = [&](std::span<const std::byte> from, int source) {
      std::copy(from.begin(), from.end(), receive.subspan(block * (source - first), block).begin());
    };
    std::vector<std::byte> travelling, came;
    for (int hops = 1; hops < world_size_; ++hops) {
      if (!SameGroup(rank_, rank_ + hops, group_size)) continue;
      const auto mine = send.subspan(block * (Wrapped(rank_ + hops) - first), block);
      travelling.insert(travelling.end(), mine.begin(), mine.end());
    }
    put(send.subspan(block * (rank_ - first), block), rank_);
    for (int hops = 1; hops < world_size_; ++hops) {
      const int source = Wrapped(rank_ - hops);
      came.resize(block * Left(source, hops, group_size));
      NSA_RETURN_IF_ERROR(ring_.Transfer(travelling, came));
      const bool arrived = SameGroup(source, rank_, group_size);
      if (arrived) put(std::span(came).first(block), source);
      travelling.assign(came.begin() + static_cast<ptrdiff_t>(arrived ? block : 0), came.end());
    }
    return absl::OkStatus();
  }

  absl::Status DoBarrier() override {
    double nothing = 0;
    return DoAllReduce(Reduce::kSum, std::span<double>(&nothing, 1));
  }

 private:
  int Wrapped(int rank) const { return (rank % world_size_ + world_size_) % world_size_; }

  bool SameGroup(int a, int b, int group_size) const {
    return Wrapped(a) / group_size == Wrapped(b) / group_size;
  }

  // Blocks of rank `source` that have not arrived before hop `hops`.
  size_t Left(int source, int hops, int group_size) const {
    size_t left = 0;
    for (int h = hops; h < world_size_; ++h) {
      if (SameGroup(source, source + h, group_size)) ++left;
    }
    return left;
  }

  // Piece `index`, modulo the world size.
  template <class T>
  std::span<T> Piece(std::span<T> values, std::span<const int64_t> cuts, int index) const {
    const auto r = static_cast<size_t>(Wrapped(index));
    return values.subspan(static_cast<size_t>(cuts[r]), static_cast<size_t>(cuts[r + 1] - cuts[r]));
  }

  static void Widen(std::span<const bf16> from, std::span<float> to) {
    std::ranges::transform(from, to.begin(), [](bf16 value) { return static_cast<float>(value); });
  }

  template <class T, class Combine>
  absl::Status ReduceScatter(std::span<T> values, std::span<const int64_t> cuts, Combine combine) {
    size_t largest = 0;
    for (int r = 0; r < world_size_; ++r) {
      largest = std::max(largest, Piece(values, cuts, r).size());
    }
    std::vector<T> partial(largest);
    for (int hop = 0; hop < world_size_ - 1; ++hop) {
      const std::span<T> own = Piece(values, cuts, rank_ - hop - 2);
      const std::span<T> came = std::span<T>(partial).first(own.size());
      NSA_RETURN_IF_ERROR(ring_.Transfer(Bytes<T>(Piece(values, cuts, rank_ - hop - 1)),
                                         std::as_writable_bytes(came)));
      for (size_t i = 0; i < own.size(); ++i) own[i] = combine(came[i], own[i]);
    }
    return absl::OkStatus();
  }

  template <class T>
  absl::Status Gather(std::span<T> values, std::span<const int64_t> cuts) {
    for (int hop = 0; hop < world_size_ - 1; ++hop) {
      NSA_RETURN_IF_ERROR(
          ring_.Transfer(Bytes<T>(Piece(values, cuts, rank_ - hop)),
                         std::as_writable_bytes(Piece(values, cuts, rank_ - hop - 1))));
    }
    return absl::OkStatus();
  }

  template <class Combine>
  absl::Status ReduceToAll(std::span<double> values, Combine combine) {
    std::vector<int64_t> cuts;
    for (int r = 0; r <= world_size_; ++r) {
      cuts.push_back(static_cast<int64_t>(values.size() * r / world_size_));
    }
    NSA_RETURN_IF_ERROR(ReduceScatter<double>(values, cuts, combine));
    return Gather<double>(values, cuts);
  }

  const int rank_;
  const int world_size_;
  TcpRing ring_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Comm>> ConnectTcp(const TcpOptions& options) {
  absl::StatusOr<TcpRing> ring =
      TcpRing::Meet({.rank = options.rank,
                     .world_size = options.world_size,
                     .meeting = MeetingFolder(options.rendezvous_dir, options.generation),
                     .listen = options.listen,
                     .timeout = options.timeout});
  NSA_RETURN_IF_ERROR(Annotate(
      ring.status(), absl::StrFormat("rank %d of %d: meeting", options.rank, options.world_size)));
  return std::make_unique<TcpComm>(options.rank, options.world_size, *std::move(ring));
}

}  // namespace nsa::train
