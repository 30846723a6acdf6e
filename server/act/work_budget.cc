#include "server/act/work_budget.h"

#include "absl/strings/str_format.h"

namespace nsa::server {

absl::Status WorkBudget::Check() const {
  if (left_ && left_()) {
    return absl::CancelledError(
        "preflight was cancelled: the client no longer waits; submit again");
  }
  if (!Over()) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("preflight: the job's files take longer to read than %d s; use fewer files, "
                      "or put them where they are read faster",
                      absl::ToInt64Seconds(most_)));
}

}  // namespace nsa::server
