#include "kernels/cuda/side.h"

#include "common/base/status.h"

namespace nsa::cuda {

absl::StatusOr<std::unique_ptr<Side>> Side::Create() {
  auto side = std::make_unique<Side>();
  int32_t priority = kMainPriority;
  for (LaneStream& lane : side->lanes_) {
    NSA_ASSIGN_OR_RETURN(lane.stream, Stream::Create(--priority));
    NSA_ASSIGN_OR_RETURN(lane.event, Event::Create());
  }
  return side;
}

absl::Status Fork(const Exec& exec, Lane lane) {
  if (exec.side == nullptr) return absl::OkStatus();
  auto& [stream, event] = (*exec.side)[lane];
  NSA_RETURN_IF_ERROR(event.Record(exec.stream));
  return event.Wait(stream.get());
}

absl::Status Join(const Exec& exec, Lane lane) {
  if (exec.side == nullptr) return absl::OkStatus();
  auto& [stream, event] = (*exec.side)[lane];
  NSA_RETURN_IF_ERROR(event.Record(stream.get()));
  return event.Wait(exec.stream);
}

Exec OnSide(const Exec& exec, Lane lane) {
  Exec on_side = exec;
  if (exec.side != nullptr) {
    on_side.stream = (*exec.side)[lane].stream.get();
    on_side.blas_workspace = 1 + static_cast<int32_t>(lane);
    on_side.side = nullptr;
  }
  return on_side;
}

}  // namespace nsa::cuda
