// Collectives over a ring of TCP connections. An all-reduce is a reduce-scatter, then an
// all-gather: chunk c is summed once around the ring, starting at rank c, and the sum is passed on
// to all ranks. So the order of every sum is fixed, and all ranks get the same bits.
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/run/rank_address.h"
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
  absl::Status DoAllReduceSum(std::span<float> values) override {
    return RingReduce<float>(values, [](float a, float b) { return a + b; });
  }

  absl::Status DoAllReduce(Reduce reduce, std::span<double> values) override {
    switch (reduce) {
      case Reduce::kSum:
        return RingReduce<double>(values, [](double a, double b) { return a + b; });
      case Reduce::kMin:
        return RingReduce<double>(values, [](double a, double b) { return b < a ? b : a; });
      case Reduce::kMax:
        return RingReduce<double>(values, [](double a, double b) { return b > a ? b : a; });
    }
    return absl::InvalidArgumentError("reduce: unknown (sum, min or max)");
  }

  absl::Status DoBroadcast(int root, std::span<std::byte> bytes) override {
    if (rank_ != root) NSA_RETURN_IF_ERROR(ring_.Transfer({}, bytes));
    if ((rank_ + 1) % world_size_ == root) return absl::OkStatus();
    return ring_.Transfer(bytes, {});
  }

  absl::Status DoBarrier() override {
    double nothing = 0;
    return DoAllReduce(Reduce::kSum, std::span<double>(&nothing, 1));
  }

 private:
  // Chunk `index`, modulo the world size, of a buffer that is cut into equal chunks.
  template <class T>
  std::span<T> Chunk(std::span<T> values, int index) const {
    const size_t c = static_cast<size_t>((index % world_size_ + world_size_) % world_size_);
    const size_t begin = values.size() * c / world_size_;
    return values.subspan(begin, values.size() * (c + 1) / world_size_ - begin);
  }

  template <class T, class Combine>
  absl::Status RingReduce(std::span<T> values, Combine combine) {
    std::vector<T> partial(values.size() / world_size_ + 1);
    for (int hop = 0; hop < world_size_ - 1; ++hop) {
      const std::span<T> own = Chunk(values, rank_ - hop - 1);
      const std::span<T> came = std::span<T>(partial).first(own.size());
      NSA_RETURN_IF_ERROR(
          ring_.Transfer(Bytes<T>(Chunk(values, rank_ - hop)), std::as_writable_bytes(came)));
      for (size_t i = 0; i < own.size(); ++i) own[i] = combine(came[i], own[i]);
    }
    for (int hop = 0; hop < world_size_ - 1; ++hop) {
      NSA_RETURN_IF_ERROR(ring_.Transfer(Bytes<T>(Chunk(values, rank_ + 1 - hop)),
                                         std::as_writable_bytes(Chunk(values, rank_ - hop))));
    }
    return absl::OkStatus();
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
