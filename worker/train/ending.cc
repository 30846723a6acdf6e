#include "worker/train/ending.h"

#include <array>

#include "absl/strings/match.h"

namespace nsa {
namespace {

struct Reason {
  const char* name;
  bool final;
};

// Reasons that messages carry.
constexpr std::array<Reason, 7> kReasons = {{{"PEER_LOST", false},
                                             {"DATA_STALLED", false},
                                             {"DATA_EXHAUSTED", true},
                                             {"NO_VALID_CHECKPOINT", true},
                                             {"CHECKPOINTS_MISSING", false},
                                             {"OUT_DIR_BUSY", false},
                                             {"CHECKPOINT_FAILED", false}}};

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
  for (const Reason& reason : kReasons) {
    if (absl::StrContains(status.message(), reason.name)) {
      return Failure(reason.final, reason.name, status);
    }
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

}  // namespace nsa
