#include "worker/train/comm/comm.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace nsa::train {
namespace {

// Shows a collective on the status page while it runs.
class OnPage {
 public:
  OnPage(StatusPage* page, std::string_view name) : page_(page) {
    if (page_ != nullptr) page_->EnterCollective(name);
  }
  ~OnPage() {
    if (page_ != nullptr) page_->LeaveCollective();
  }
  OnPage(const OnPage&) = delete;
  OnPage& operator=(const OnPage&) = delete;

 private:
  StatusPage* const page_;
};

class SingleRankComm final : public Comm {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  absl::Status CheckPeers() override { return absl::OkStatus(); }

 protected:
  absl::Status DoReduceScatterSum(std::span<float>, std::span<const int64_t>, Wire) override {
    return absl::OkStatus();
  }
  absl::Status DoAllGather(std::span<float>, std::span<const int64_t>, Wire) override {
    return absl::OkStatus();
  }
  absl::Status DoAllReduce(Reduce, std::span<double>) override { return absl::OkStatus(); }
  absl::Status DoBroadcast(int, std::span<std::byte>) override { return absl::OkStatus(); }
  absl::Status DoExchangeInGroups(int, std::span<const std::byte> send,
                                  std::span<std::byte> receive) override {
    std::copy(send.begin(), send.end(), receive.begin());
    return absl::OkStatus();
  }
  absl::Status DoBarrier() override { return absl::OkStatus(); }
};

absl::Status CheckCuts(std::span<const int64_t> cuts, size_t size, int world_size) {
  const bool covers = cuts.size() == static_cast<size_t>(world_size) + 1 && cuts.front() == 0 &&
                      cuts.back() == static_cast<int64_t>(size) && std::ranges::is_sorted(cuts);
  if (covers) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("cuts: ", absl::StrJoin(cuts, ", "), " (one piece for each of ", world_size,
                   " ranks, from 0 to ", size, "); pass those of Shares"));
}

}  // namespace

absl::Status Comm::AllReduceSum(std::string_view name, std::span<float> values,
                                std::span<const int64_t> cuts, Wire wire) {
  const OnPage on_page(page_, name);
  NSA_RETURN_IF_ERROR(Annotate(CheckCuts(cuts, values.size(), world_size()), name));
  NSA_RETURN_IF_ERROR(Annotate(DoReduceScatterSum(values, cuts, wire), name));
  return Annotate(DoAllGather(values, cuts, wire), name);
}

absl::Status Comm::ReduceScatterSum(std::string_view name, std::span<float> values,
                                    std::span<const int64_t> cuts, Wire wire) {
  const OnPage on_page(page_, name);
  NSA_RETURN_IF_ERROR(Annotate(CheckCuts(cuts, values.size(), world_size()), name));
  return Annotate(DoReduceScatterSum(values, cuts, wire), name);
}

absl::Status Comm::AllGather(std::string_view name, std::span<float> values,
                             std::span<const int64_t> cuts) {
  const OnPage on_page(page_, name);
  NSA_RETURN_IF_ERROR(Annotate(CheckCuts(cuts, values.size(), world_size()), name));
  return Annotate(DoAllGather(values, cuts, Wire::kF32), name);
}

absl::Status Comm::AllReduce(std::string_view name, Reduce reduce, std::span<double> values) {
  const OnPage on_page(page_, name);
  return Annotate(DoAllReduce(reduce, values), name);
}

absl::Status Comm::Broadcast(std::string_view name, int root, std::span<std::byte> bytes) {
  const OnPage on_page(page_, name);
  return Annotate(DoBroadcast(root, bytes), name);
}

absl::Status Comm::ExchangeInGroups(std::string_view name, int group_size,
                                    std::span<const std::byte> send, std::span<std::byte> receive) {
  if (group_size < 1 || world_size() % group_size != 0 || send.size() % group_size != 0 ||
      send.size() != receive.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        absl::string_view(name.data(), name.size()), ": groups of ", group_size, " of ",
        world_size(), " ranks, ", send.size(), " bytes to send and ", receive.size(),
        " to receive (must be whole groups, a block for each of their ranks); correct the caller"));
  }
  const OnPage on_page(page_, name);
  return Annotate(DoExchangeInGroups(group_size, send, receive), name);
}

absl::Status Comm::Barrier(std::string_view name) {
  const OnPage on_page(page_, name);
  return Annotate(DoBarrier(), name);
}

std::unique_ptr<Comm> SingleRank() { return std::make_unique<SingleRankComm>(); }

}  // namespace nsa::train
