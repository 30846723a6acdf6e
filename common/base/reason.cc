#include "common/base/reason.h"

#include <algorithm>
#include <array>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace nsa {
namespace {

constexpr char kPayloadUrl[] = "nsa.dev/reason";

using enum ReasonUse;
constexpr bool kFinal = true;
constexpr bool kRetried = false;
constexpr bool kGoesOn = false;  // nothing failed

constexpr std::array<ReasonInfo, kReasonCount> kReasons = {{
    {Reason::kCompleted, "COMPLETED", kEnded, kGoesOn, Fault::kNone},
    // If the data ends after a step, the run succeeded; a run that got no batch at all failed.
    {Reason::kDataExhausted, "DATA_EXHAUSTED", kEnded, kFinal, Fault::kJob},
    {Reason::kStopped, "STOPPED", kEnded, kGoesOn, Fault::kAsked},
    {Reason::kStoppedAtStep, "STOPPED_AT_STEP", kEnded, kGoesOn, Fault::kAsked},
    {Reason::kStoppedByUser, "STOPPED_BY_USER", kEnded, kGoesOn, Fault::kAsked},
    // The ranks had already passed the step named in the stop request when they received it.
    {Reason::kStoppedLate, "STOPPED_LATE", kEnded, kGoesOn, Fault::kAsked},
    // Other jobs of the sweep had a lower validation loss.
    {Reason::kSweepDropped, "SWEEP_DROPPED", kEnded, kGoesOn, Fault::kAsked},
    // Its ranks have run for limits.hours.
    {Reason::kTimeLimit, "TIME_LIMIT", kEnded, kGoesOn, Fault::kAsked},
    // Somebody cancelled the job's machines in the cluster manager (scancel).
    {Reason::kAllocationCancelled, "ALLOCATION_CANCELLED", kEnded, kGoesOn, Fault::kAsked},

    {Reason::kPeerLost, "PEER_LOST", kFailed, kRetried, Fault::kMachine},
    {Reason::kDataStalled, "DATA_STALLED", kFailed, kRetried, Fault::kJob},
    {Reason::kCheckpointFailed, "CHECKPOINT_FAILED", kFailed, kRetried, Fault::kJob},
    {Reason::kNonfiniteLoss, "NONFINITE_LOSS", kFailed, kFinal, Fault::kJob},
    // The loss stayed above that of a uniform guess. Also the event that says so after a few steps,
    // and the reason of a run that did all its steps so, where the guard is off or it is too short.
    {Reason::kDiverged, "DIVERGED", kFailed, kFinal, Fault::kJob},
    {Reason::kThroughputTooLow, "THROUGHPUT_TOO_LOW", kFailed, kFinal, Fault::kJob},
    {Reason::kNoValidCheckpoint, "NO_VALID_CHECKPOINT", kFailed, kFinal, Fault::kJob},
    // The worker's last record has no reason.
    {Reason::kWorkerFailed, "WORKER_FAILED", kFailed, kRetried, Fault::kJob},
    {Reason::kStartFailed, "START_FAILED", kFailed, kRetried, Fault::kJob},
    {Reason::kKilled, "KILLED", kFailed, kRetried, Fault::kMachine},  // by its agent
    {Reason::kRankKilled, "RANK_KILLED", kFailed, kRetried, Fault::kJob},
    // The kernel ended the process because host memory ran out.
    {Reason::kOutOfMemory, "OUT_OF_MEMORY", kFailed, kRetried, Fault::kJob},
    {Reason::kRankCrashed, "RANK_CRASHED", kFailed, kRetried, Fault::kJob},
    // Final if the exit code says that a restart would fail too.
    {Reason::kRankExited, "RANK_EXITED", kFailed, kRetried, Fault::kJob},
    {Reason::kRankLost, "RANK_LOST", kFailed, kRetried, Fault::kJob},
    {Reason::kNodeLost, "NODE_LOST", kFailed, kRetried, Fault::kMachine},
    {Reason::kNodeRestarted, "NODE_RESTARTED", kFailed, kRetried, Fault::kMachine},
    {Reason::kWorkerVanished, "WORKER_VANISHED", kFailed, kRetried, Fault::kMachine},
    // Something outside the service stopped the ranks. Also the reason of a queued job that gave
    // way to one of higher priority.
    {Reason::kPreempted, "PREEMPTED", kFailed, kRetried, Fault::kMachine},
    {Reason::kHang, "HANG", kFailed, kRetried, Fault::kJob},
    {Reason::kNoProgress, "NO_PROGRESS", kFailed, kFinal, Fault::kJob},
    {Reason::kRestartBudgetExhausted, "RESTART_BUDGET_EXHAUSTED", kFailed, kFinal, Fault::kJob},
    {Reason::kFailedForGood, "FAILED_FOR_GOOD", kFailed, kFinal, Fault::kJob},
    // The cluster manager gives this job no machines, or none on which an agent can start.
    {Reason::kAllocationRefused, "ALLOCATION_REFUSED", kFailed, kFinal, Fault::kJob},

    {Reason::kPreflightRefused, "PREFLIGHT_REFUSED", kRefused, kRetried, Fault::kJob},
    {Reason::kCheckpointsMissing, "CHECKPOINTS_MISSING", kRefused, kRetried, Fault::kMachine},
    {Reason::kOutDirBusy, "OUT_DIR_BUSY", kRefused, kRetried, Fault::kMachine},

    {Reason::kNewerSpec, "NEWER_SPEC", kRequestRefused, kFinal, Fault::kAsked},
    {Reason::kOutDirInUse, "OUT_DIR_IN_USE", kRequestRefused, kFinal, Fault::kAsked},
    {Reason::kPathNotAllowed, "PATH_NOT_ALLOWED", kRequestRefused, kFinal, Fault::kAsked},
    {Reason::kStepInThePast, "STEP_IN_THE_PAST", kRequestRefused, kFinal, Fault::kAsked},
    {Reason::kStepBeyondTheEnd, "STEP_BEYOND_THE_END", kRequestRefused, kFinal, Fault::kAsked},
    {Reason::kJobHasEnded, "JOB_HAS_ENDED", kRequestRefused, kFinal, Fault::kAsked},
    {Reason::kJobHasNotEnded, "JOB_HAS_NOT_ENDED", kRequestRefused, kFinal, Fault::kAsked},
    {Reason::kNotResumable, "NOT_RESUMABLE", kRequestRefused, kFinal, Fault::kAsked},
    {Reason::kSweepMismatch, "SWEEP_MISMATCH", kRequestRefused, kFinal, Fault::kAsked},
    // Several jobs have the name that a request gives.
    {Reason::kAmbiguousName, "AMBIGUOUS_NAME", kRequestRefused, kFinal, Fault::kAsked},
    {Reason::kOverQuota, "OVER_QUOTA", kRequestRefused, kFinal, Fault::kAsked},

    {Reason::kNoNodes, "NO_NODES", kWaiting, kGoesOn, Fault::kNone},
    {Reason::kUnplaceable, "UNPLACEABLE", kWaiting, kGoesOn, Fault::kNone},
    {Reason::kWaitingForSlots, "WAITING_FOR_SLOTS", kWaiting, kGoesOn, Fault::kNone},
    {Reason::kBehindAnotherJob, "BEHIND_ANOTHER_JOB", kWaiting, kGoesOn, Fault::kNone},
    // It would fit on a machine on which nothing is placed at present.
    {Reason::kCordoned, "CORDONED", kWaiting, kGoesOn, Fault::kAsked},
    {Reason::kWaitingForAllocation, "WAITING_FOR_ALLOCATION", kWaiting, kGoesOn, Fault::kNone},
    // Until its not_before, and until the jobs of its `after` are SUCCEEDED. Also the event that
    // one of those was resumed.
    {Reason::kWaitingForTime, "WAITING_FOR_TIME", kWaiting, kGoesOn, Fault::kAsked},
    {Reason::kWaitingForJobs, "WAITING_FOR_JOBS", kWaiting, kGoesOn, Fault::kAsked},
    // One of those failed, was stopped or was deleted. Also the event that says so.
    {Reason::kDependencyNeverSatisfied, "DEPENDENCY_NEVER_SATISFIED", kWaiting, kGoesOn,
     Fault::kAsked},
    {Reason::kWaitingForQuota, "WAITING_FOR_QUOTA", kWaiting, kGoesOn, Fault::kAsked},

    {Reason::kSubmitted, "SUBMITTED", kEvent, kGoesOn, Fault::kAsked},
    {Reason::kPlaced, "PLACED", kEvent, kGoesOn, Fault::kNone},
    {Reason::kLaunched, "LAUNCHED", kEvent, kGoesOn, Fault::kNone},
    {Reason::kAllRanksUp, "ALL_RANKS_UP", kEvent, kGoesOn, Fault::kNone},
    {Reason::kRestartScheduled, "RESTART_SCHEDULED", kEvent, kGoesOn, Fault::kNone},
    {Reason::kRestarted, "RESTARTED", kEvent, kGoesOn, Fault::kNone},
    {Reason::kResumed, "RESUMED", kEvent, kGoesOn, Fault::kNone},
    {Reason::kSweepPromoted, "SWEEP_PROMOTED", kEvent, kGoesOn, Fault::kNone},
    {Reason::kNodeGone, "NODE_GONE", kEvent, kGoesOn, Fault::kMachine},
    // A machine is drained: the ranks are being ended, and then the job is queued for others.
    {Reason::kMoving, "MOVING", kEvent, kGoesOn, Fault::kAsked},
    {Reason::kMoved, "MOVED", kEvent, kGoesOn, Fault::kAsked},
    // A job of higher priority waits for its slots: the ranks are being ended, and then the job is
    // queued with PREEMPTED.
    {Reason::kGivingWay, "GIVING_WAY", kEvent, kGoesOn, Fault::kNone},
    // Another job gives way to this one, which waits.
    {Reason::kPreempting, "PREEMPTING", kEvent, kGoesOn, Fault::kNone},
    {Reason::kAllocationRequested, "ALLOCATION_REQUESTED", kEvent, kGoesOn, Fault::kNone},
    {Reason::kAllocationGranted, "ALLOCATION_GRANTED", kEvent, kGoesOn, Fault::kNone},
    {Reason::kAllocationLost, "ALLOCATION_LOST", kEvent, kGoesOn, Fault::kMachine},
    {Reason::kAllocationReturned, "ALLOCATION_RETURNED", kEvent, kGoesOn, Fault::kNone},
    {Reason::kGpuFault, "GPU_FAULT", kEvent, kGoesOn, Fault::kMachine},
    {Reason::kStopAtStep, "STOP_AT_STEP", kEvent, kGoesOn, Fault::kAsked},
    {Reason::kStopGraceExceeded, "STOP_GRACE_EXCEEDED", kEvent, kGoesOn, Fault::kJob},
    {Reason::kHangSuspected, "HANG_SUSPECTED", kEvent, kGoesOn, Fault::kJob},
    {Reason::kHangOver, "HANG_OVER", kEvent, kGoesOn, Fault::kNone},
    {Reason::kStacksSaved, "STACKS_SAVED", kEvent, kGoesOn, Fault::kJob},
    {Reason::kStacksNotSaved, "STACKS_NOT_SAVED", kEvent, kGoesOn, Fault::kMachine},
    {Reason::kProfiled, "PROFILED", kEvent, kGoesOn, Fault::kAsked},
    {Reason::kLogQuota, "LOG_QUOTA", kEvent, kGoesOn, Fault::kJob},
    {Reason::kLabelsChanged, "LABELS_CHANGED", kEvent, kGoesOn, Fault::kAsked},
    {Reason::kNote, "NOTE", kEvent, kGoesOn, Fault::kAsked},
    {Reason::kMuted, "MUTED", kEvent, kGoesOn, Fault::kAsked},
    {Reason::kUnmuted, "UNMUTED", kEvent, kGoesOn, Fault::kAsked},
    {Reason::kCheckpointPinned, "CHECKPOINT_PINNED", kEvent, kGoesOn, Fault::kAsked},
    {Reason::kCheckpointUnpinned, "CHECKPOINT_UNPINNED", kEvent, kGoesOn, Fault::kAsked},
    // Nothing of not_before and `after` holds the job any more.
    {Reason::kReleased, "RELEASED", kEvent, kGoesOn, Fault::kNone},
    // The condition of one of the job's alerts has held for long enough, or no longer holds.
    {Reason::kAlertRaised, "ALERT_RAISED", kEvent, kGoesOn, Fault::kNone},
    {Reason::kAlertCleared, "ALERT_CLEARED", kEvent, kGoesOn, Fault::kNone},

    {Reason::kInitialized, "INITIALIZED", kEvent, kGoesOn, Fault::kNone},
    {Reason::kScheduleChanged, "SCHEDULE_CHANGED", kEvent, kGoesOn, Fault::kAsked},
    {Reason::kAlgorithmsChanged, "ALGORITHMS_CHANGED", kEvent, kGoesOn, Fault::kMachine},
    {Reason::kDataMoved, "DATA_MOVED", kEvent, kGoesOn, Fault::kNone},
    // What preflight's rules of these names find where they can look: data.val_fraction holds out
    // another share than it says, and a text is not UTF-8.
    {Reason::kValShare, "VAL_SHARE", kEvent, kGoesOn, Fault::kJob},
    {Reason::kDataNotUtf8, "DATA_NOT_UTF8", kEvent, kGoesOn, Fault::kJob},
    // Conversations are cut, left out, or leave much of the sequences empty.
    {Reason::kPacking, "PACKING", kEvent, kGoesOn, Fault::kJob},
    {Reason::kTelemetryFailed, "TELEMETRY_FAILED", kEvent, kGoesOn, Fault::kMachine},
    {Reason::kTelemetryRestored, "TELEMETRY_RESTORED", kEvent, kGoesOn, Fault::kNone},
    {Reason::kCheckpointAbandoned, "CHECKPOINT_ABANDONED", kEvent, kGoesOn, Fault::kNone},
    {Reason::kCheckpointCorrupt, "CHECKPOINT_CORRUPT", kEvent, kGoesOn, Fault::kMachine},
    {Reason::kCheckpointDeleteFailed, "CHECKPOINT_DELETE_FAILED", kEvent, kGoesOn, Fault::kMachine},
    {Reason::kCheckpointUploadFailed, "CHECKPOINT_UPLOAD_FAILED", kEvent, kGoesOn, Fault::kMachine},
    {Reason::kCheckpointUploadLags, "CHECKPOINT_UPLOAD_LAGS", kEvent, kGoesOn, Fault::kMachine},
    {Reason::kCheckpointUploadRestored, "CHECKPOINT_UPLOAD_RESTORED", kEvent, kGoesOn,
     Fault::kNone},
    {Reason::kCheckpointDownloaded, "CHECKPOINT_DOWNLOADED", kEvent, kGoesOn, Fault::kNone},
    {Reason::kGateCollapse, "GATE_COLLAPSE", kEvent, kGoesOn, Fault::kJob},
    {Reason::kNonfiniteSkipped, "NONFINITE_SKIPPED", kEvent, kGoesOn, Fault::kJob},
    {Reason::kParametersDiffer, "PARAMETERS_DIFFER", kEvent, kGoesOn, Fault::kMachine},
    {Reason::kFallback, "FALLBACK", kEvent, kGoesOn, Fault::kNone},
    {Reason::kSampleFailed, "SAMPLE_FAILED", kEvent, kGoesOn, Fault::kJob},
}};

constexpr bool InOrderOfTheEnum() {
  for (int i = 0; i < kReasonCount; ++i) {
    if (kReasons[i].reason != static_cast<Reason>(i)) return false;
  }
  return true;
}
static_assert(InOrderOfTheEnum());

}  // namespace

const ReasonInfo& InfoOf(Reason reason) { return kReasons[static_cast<size_t>(reason)]; }

std::string Word(Reason reason) { return std::string(InfoOf(reason).word); }

std::optional<Reason> ReasonFromWord(std::string_view word) {
  const auto* const found = std::ranges::find(kReasons, word, &ReasonInfo::word);
  if (found == kReasons.end()) return std::nullopt;
  return found->reason;
}

absl::Status WithReason(absl::Status status, Reason reason) {
  status.SetPayload(kPayloadUrl, absl::Cord(Word(reason)));
  return status;
}

std::optional<Reason> ReasonOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayloadUrl);
  if (!payload.has_value()) return std::nullopt;
  return ReasonFromWord(std::string(*payload));
}

absl::Status ReasonError(absl::StatusCode code, Reason reason, std::string_view text) {
  return WithReason(absl::Status(code, absl::StrCat(Word(reason), ": ", std::string(text))),
                    reason);
}

}  // namespace nsa
