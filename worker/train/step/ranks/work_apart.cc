#include "worker/train/step/ranks/work_apart.h"

#include <array>
#include <chrono>
#include <future>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "common/base/status.h"

namespace nsa::train {
namespace {

constexpr auto kBetween = std::chrono::milliseconds(500);

// Whether some rank still works.
absl::StatusOr<bool> AnyWorks(std::string_view name, bool works, Comm* comm) {
  std::array<double, 1> any = {works ? 1.0 : 0.0};
  NSA_RETURN_IF_ERROR(comm->AllReduce(name, Reduce::kMax, any));
  return any[0] != 0;
}

}  // namespace

absl::Status WorkApart(std::string_view name, Comm* comm, std::atomic<bool>* cancelled,
                       const std::function<absl::Status()>& work) {
  if (comm->world_size() == 1) return work();
  StatusPage* const page = comm->status_page();
  comm->set_status_page(nullptr);
  std::promise<void> done;
  std::future<absl::Status> others =
      std::async(std::launch::async, [&, ended = done.get_future()]() -> absl::Status {
        do {
          const absl::Status together = AnyWorks(name, true, comm).status();
          if (!together.ok()) {
            *cancelled = true;
            return together;
          }
        } while (ended.wait_for(kBetween) == std::future_status::timeout);
        return absl::OkStatus();
      });
  absl::Status status;
  {
    const absl::Cleanup end = [&] { done.set_value(); };
    status = work();
  }
  const absl::Status together = others.get();
  comm->set_status_page(page);
  if (!status.ok() && !(*cancelled && absl::IsCancelled(status))) return status;
  NSA_RETURN_IF_ERROR(together);
  for (bool any = true; any;) {
    NSA_ASSIGN_OR_RETURN(any, AnyWorks(name, false, comm));
  }
  return absl::OkStatus();
}

}  // namespace nsa::train
