#include "worker/train/step/ending.h"

#include <utility>

#include "common/base/reason.h"

namespace nsa::train {
namespace {

// For errors without a reason: errors of the job or its data are final, a restart may help with
// others.
bool IsFinal(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

Ending Failure(bool final, std::string reason, const absl::Status& status) {
  return {.outcome = final ? v1::OUTCOME_FAILED_FINAL : v1::OUTCOME_FAILED,
          .reason = std::move(reason),
          .text = std::string(status.message())};
}

}  // namespace

Ending EndingOf(const absl::Status& status) {
  if (const std::optional<Reason> reason = ReasonOf(status)) {
    if (*reason == Reason::kStopped) {
      return {v1::OUTCOME_STOPPED, Word(*reason), std::string(status.message())};
    }
    return Failure(InfoOf(*reason).final, Word(*reason), status);
  }
  return Failure(IsFinal(status.code()), absl::StatusCodeToString(status.code()), status);
}

int ExitCodeOf(v1::Outcome outcome) {
  switch (outcome) {
    case v1::OUTCOME_COMPLETED:
    case v1::OUTCOME_STOPPED:
      return 0;
    case v1::OUTCOME_FAILED_FINAL:
      return 3;
    default:
      return 1;
  }
}

}  // namespace nsa::train
