// All reasons of the service, e.g. PEER_LOST. A job, an event, a worker's last record and a refused
// request each have a reason: an upper-case word with defined consequences. Code compares the enum
// value and never searches the text of a message.
//
// Within a program a reason is the payload of a Status (NSA_RETURN_IF_ERROR and Annotate() keep
// it); on the wire and on disk it is the word. To add a reason, add a value here and its row in
// reason.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace nsa {

// In the order of the table in reason.cc, which has the properties of each reason.
enum class Reason : uint8_t {
  // A run ended without a failure.
  kCompleted,
  kDataExhausted,
  kStopped,
  kStoppedAtStep,
  kStoppedByUser,
  kStoppedLate,
  kSweepDropped,
  kTimeLimit,
  kAllocationCancelled,
  // A run failed.
  kPeerLost,
  kDataStalled,
  kCheckpointFailed,
  kNonfiniteLoss,
  kDiverged,
  kThroughputTooLow,
  kNoValidCheckpoint,
  kWorkerFailed,
  kStartFailed,
  kKilled,
  kRankKilled,
  kOutOfMemory,
  kRankCrashed,
  kRankExited,
  kRankLost,
  kNodeLost,
  kNodeRestarted,
  kWorkerVanished,
  kPreempted,
  kHang,
  kNoProgress,
  kRestartBudgetExhausted,
  kFailedForGood,
  kAllocationRefused,
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
  kSweepMismatch,
  kAmbiguousName,
  kOverQuota,
  // A queued job waits.
  kNoNodes,
  kUnplaceable,
  kWaitingForSlots,
  kBehindAnotherJob,
  kCordoned,
  kWaitingForAllocation,
  kWaitingForTime,
  kWaitingForJobs,
  kDependencyNeverSatisfied,
  kWaitingForQuota,
  // Something happened to a job, and the job continues.
  kSubmitted,
  kPlaced,
  kLaunched,
  kAllRanksUp,
  kRestartScheduled,
  kRestarted,
  kResumed,
  kSweepPromoted,
  kNodeGone,
  kMoving,
  kMoved,
  kGivingWay,
  kPreempting,
  kAllocationRequested,
  kAllocationGranted,
  kAllocationLost,
  kAllocationReturned,
  kGpuFault,
  kStopAtStep,
  kStopGraceExceeded,
  kHangSuspected,
  kHangOver,
  kStacksSaved,
  kStacksNotSaved,
  kProfiled,
  kLogQuota,
  kLabelsChanged,
  kNote,
  kMuted,
  kUnmuted,
  kCheckpointPinned,
  kCheckpointUnpinned,
  kReleased,
  kAlertRaised,
  kAlertCleared,
  // A worker reported an event and continues.
  kInitialized,
  kScheduleChanged,
  kAlgorithmsChanged,
  kDataMoved,
  kValShare,
  kDataNotUtf8,
  kPacking,
  kTelemetryFailed,
  kTelemetryRestored,
  kCheckpointAbandoned,
  kCheckpointCorrupt,
  kCheckpointDeleteFailed,
  kCheckpointUploadFailed,
  kCheckpointUploadLags,
  kCheckpointUploadRestored,
  kCheckpointDownloaded,
  kGateCollapse,
  kNonfiniteSkipped,
  kParametersDiffer,
  kFallback,
  kSampleFailed,
};
inline constexpr int kReasonCount = static_cast<int>(Reason::kSampleFailed) + 1;

enum class ReasonUse : uint8_t {
  kEnded,           // a run did all its steps, used up its data, or stopped on request
  kFailed,          // a run that had begun failed
  kRefused,         // a start was refused before anything began; not counted as a restart
  kRequestRefused,  // the coordinator refused a request; the job is unchanged
  kWaiting,         // why a queued job is not placed
  kEvent,           // an event; the job continues
};

enum class Fault : uint8_t {
  kNone,     // nothing went wrong
  kJob,      // the job, its data or its program: counts against restart.max_restarts
  kMachine,  // the machine or another rank: does not count
  kAsked,    // a user requested it, or requested something impossible
};

struct ReasonInfo {
  Reason reason;
  std::string_view word;
  ReasonUse use;
  bool final;  // for kFailed, kRefused and kRequestRefused: another attempt would fail too
  Fault fault;
};

const ReasonInfo& InfoOf(Reason reason);

// "PEER_LOST".
std::string Word(Reason reason);

// Nothing if the word is not in the table, e.g. a reason of a newer version or a status code name.
std::optional<Reason> ReasonFromWord(std::string_view word);

// `status` with the reason as payload; it replaces an earlier reason. OK stays OK.
absl::Status WithReason(absl::Status status, Reason reason);

// The reason that `status` carries, if any.
std::optional<Reason> ReasonOf(const absl::Status& status);

// An error that carries `reason` and begins with its word: "PEER_LOST: text".
absl::Status ReasonError(absl::StatusCode code, Reason reason, std::string_view text);

}  // namespace nsa
