#include "worker/train/step/ranks/context_ranks.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/estimate/passes.h"
#include "kernels/cuda/device.h"

namespace nsa::train {
namespace {

constexpr char kExchangeHeads[] =
    "exchange_heads";  // on the status page, as a collective or a kernel

class TcpContext final : public ContextGroup {
 public:
  TcpContext(Comm* comm, int32_t size) : comm_(*comm), size_(size) {}

  int32_t size() const override { return size_; }
  int32_t index() const override { return comm_.rank() % size_; }

  absl::Status Exchange(const Exec&, std::span<const Piece> pieces) override {
    send_.clear();
    for (const Piece& piece : pieces) {
      const auto* const from = static_cast<const std::byte*>(piece.send);
      send_.insert(send_.end(), from, from + piece.bytes);
    }
    receive_.resize(send_.size());
    NSA_RETURN_IF_ERROR(comm_.ExchangeInGroups(kExchangeHeads, size_, send_, receive_));
    auto from = receive_.cbegin();
    for (const Piece& piece : pieces) {
      std::copy_n(from, piece.bytes, static_cast<std::byte*>(piece.receive));
      from += piece.bytes;
    }
    return absl::OkStatus();
  }

 private:
  Comm& comm_;
  const int32_t size_;
  std::vector<std::byte> send_, receive_;  // a block for each rank of the group
};

class NcclContext final : public ContextGroup {
 public:
  NcclContext(NcclComm* comm, int32_t size) : comm_(*comm), size_(size) {}

  int32_t size() const override { return size_; }
  int32_t index() const override { return comm_.rank() % size_; }

  absl::Status Exchange(const Exec& exec, std::span<const Piece> pieces) override {
    exec.Enter(kExchangeHeads);
    transfers_.clear();
    for (const Piece& piece : pieces) {
      if (piece.rank == index()) {
        NSA_RETURN_IF_ERROR(cuda::CopyBytes(exec.stream, piece.receive, piece.send, piece.bytes));
        continue;
      }
      transfers_.push_back({.peer = comm_.rank() - index() + piece.rank,
                            .send = piece.send,
                            .receive = piece.receive,
                            .bytes = piece.bytes});
    }
    return comm_.Exchange(kExchangeHeads, transfers_, exec.stream);
  }

 private:
  NcclComm& comm_;
  const int32_t size_;
  std::vector<NcclTransfer> transfers_;
};

}  // namespace

absl::Status CheckShare(const v1::JobSpec& spec, int32_t ranks) {
  const int32_t context = ContextOf(spec);
  if (ranks % context != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("resources.context_parallel: ", context, " (must divide the ", ranks,
                     " ranks); start a multiple of it, or change it"));
  }
  if (spec.train().batch_size() % (ranks / context) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("train.batch_size: ", spec.train().batch_size(),
                                                 " (must be a multiple of the ", ranks / context,
                                                 context == 1 ? " ranks" : " groups of ranks",
                                                 "); change batch_size or resources.gpus"));
}

std::unique_ptr<ContextGroup> ContextOverTcp(Comm* comm, int32_t size) {
  if (size <= 1) return nullptr;
  return std::make_unique<TcpContext>(comm, size);
}

std::unique_ptr<ContextGroup> ContextOverNccl(NcclComm* comm, int32_t size) {
  if (size <= 1) return nullptr;
  return std::make_unique<NcclContext>(comm, size);
}

}  // namespace nsa::train
