#include "kernels/cuda/side.h"

#include "common/base/status.h"

namespace nsa::cuda {

absl::StatusOr<std::unique_ptr<Side>> Side::Create() {
  auto side = std::make_unique<Side>();
  NSA_ASSIGN_OR_RETURN(side->stream_, Stream::Create());
  NSA_ASSIGN_OR_RETURN(side->event_, Event::Create());
  return side;
}

absl::Status Fork(const Exec& exec) {
  if (exec.side == nullptr) return absl::OkStatus();
  NSA_RETURN_IF_ERROR(exec.side->event_.Record(exec.stream));
  return exec.side->event_.Wait(exec.side->stream_.get());
}

absl::Status Join(const Exec& exec) {
  if (exec.side == nullptr) return absl::OkStatus();
  NSA_RETURN_IF_ERROR(exec.side->event_.Record(exec.side->stream_.get()));
  return exec.side->event_.Wait(exec.stream);
}

Exec OnSide(const Exec& exec) {
  Exec on_side = exec;
  if (exec.side != nullptr) {
    on_side.stream = exec.side->stream_.get();
    on_side.side = nullptr;
  }
  return on_side;
}

}  // namespace nsa::cuda
