#include "worker/train/comm/comm.h"

#include "absl/strings/str_cat.h"
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
  absl::Status DoAllReduceSum(std::span<float>) override { return absl::OkStatus(); }
  absl::Status DoAllReduce(Reduce, std::span<double>) override { return absl::OkStatus(); }
  absl::Status DoBroadcast(int, std::span<std::byte>) override { return absl::OkStatus(); }
  absl::Status DoBarrier() override { return absl::OkStatus(); }
};

}  // namespace

absl::Status Comm::AllReduceSum(std::string_view name, std::span<float> values) {
  const OnPage on_page(page_, name);
  return Annotate(DoAllReduceSum(values), name);
}

absl::Status Comm::AllReduce(std::string_view name, Reduce reduce, std::span<double> values) {
  const OnPage on_page(page_, name);
  return Annotate(DoAllReduce(reduce, values), name);
}

absl::Status Comm::Broadcast(std::string_view name, int root, std::span<std::byte> bytes) {
  const OnPage on_page(page_, name);
  return Annotate(DoBroadcast(root, bytes), name);
}

absl::Status Comm::Barrier(std::string_view name) {
  const OnPage on_page(page_, name);
  return Annotate(DoBarrier(), name);
}

std::unique_ptr<Comm> SingleRank() { return std::make_unique<SingleRankComm>(); }

}  // namespace nsa::train
