// Every reason word of the service, e.g. PEER_LOST: the upper-case word that a job, an event, a
// worker's last record or a refused request carries, and what follows from it. Code decides by the
// value; nothing decides by searching the text of a message.
//
// A reason travels inside a Status as its payload (NSA_RETURN_IF_ERROR and Annotate() keep it), and
// as the word on the wire and on disk. To add one: a value here and its row in reason.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace nsa {

// In the order of the table in reason.cc, which says what each one means.
enum class Reason : uint8_t {
  // A run ended well.
  kCompleted,
  kDataExhausted,
  kStopped,
  kStoppedAtStep,
  kStoppedByUser,
  kStoppedLate,
  // A run failed.
  kPeerLost,
  kDataStalled,
  kCheckpointFailed,
  kNonfiniteLoss,
  kThroughputTooLow,
  kNoValidCheckpoint,
  kWorkerFailed,
  kStartFailed,
  kKilled,
  kRankKilled,
  kRankCrashed,
  kRankExited,
  kRankLost,
  kNodeLost,
  kWorkerVanished,
  kPreempted,
  kHang,
  kNoProgress,
  kRestartBudgetExhausted,
  kFailedForGood,
  // A start was refused before anything began.
  kPreflightRefused,
  kCheckpointsMissing,
  kOutDirBusy,
  // A request was refused.
  kNewerSpec,
  kOutDirInUse,
  kPathNotAllowed,
  kStepInThePast,
  kStepBeyondTheEnd,
  kJobHasEnded,
  kJobHasNotEnded,
  kNotResumable,
  // A queued job waits.
  kNoNodes,
  kUnplaceable,
  kWaitingForSlots,
  kBehindAnotherJob,
  // Something happened to a job that goes on.
  kSubmitted,
  kPlaced,
  kLaunched,
  kAllRanksUp,
  kRestartScheduled,
  kRestarted,
  kResumed,
  kNodeGone,
  kStopAtStep,
  kStopGraceExceeded,
  kHangSuspected,
  kHangOver,
  kLogQuota,
  // A worker reports an event and goes on.
  kTelemetryFailed,
  kTelemetryRestored,
  kCheckpointAbandoned,
  kCheckpointCorrupt,
  kCheckpointDeleteFailed,
  kGateCollapse,
  kNonfiniteSkipped,
  kFallback,
};
inline constexpr int kReasonCount = static_cast<int>(Reason::kFallback) + 1;

enum class ReasonUse : uint8_t {
  kEnded,           // a run ended with all its steps, its data, or as asked
  kFailed,          // a run that had begun failed
  kRefused,         // a start was refused before anything began; not counted as a restart
  kRequestRefused,  // the coordinator refused a request; the job is as before
  kWaiting,         // why a queued job is not placed
  kEvent,           // an event; the job goes on
};

enum class Fault : uint8_t {
  kNone,     // nothing went wrong
  kJob,      // the job, its data or its program: counts against restart.max_restarts
  kMachine,  // the machine or another rank: does not count
  kAsked,    // someone asked for it, or asked for something impossible
};

struct ReasonInfo {
  Reason reason;
  std::string_view word;
  ReasonUse use;
  bool final;  // kFailed, kRefused and kRequestRefused: trying again would end the same way
  Fault fault;
};

const ReasonInfo& InfoOf(Reason reason);

// "PEER_LOST".
std::string Word(Reason reason);

// Nothing for a word that is not in the table, e.g. one of a newer version or a status code's name.
std::optional<Reason> ReasonFromWord(std::string_view word);

// `status` with the reason as payload, in place of an earlier one. OK stays OK.
absl::Status WithReason(absl::Status status, Reason reason);

// The reason that `status` carries, if any.
std::optional<Reason> ReasonOf(const absl::Status& status);

// An error that carries `reason` and begins with its word: "PEER_LOST: text".
absl::Status ReasonError(absl::StatusCode code, Reason reason, std::string_view text);

}  // namespace nsa
