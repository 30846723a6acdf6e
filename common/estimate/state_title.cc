#include "common/estimate/state_title.h"

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"

namespace nsa {

std::string StateTitle(v1::Job::State state) {
  switch (state) {
    case v1::Job::STATE_QUEUED:
    case v1::Job::STATE_PREFLIGHT:
      return "waiting";
    case v1::Job::STATE_STARTING:
      return "starting";
    case v1::Job::STATE_RUNNING:
      return "training";
    case v1::Job::STATE_RESTARTING:
      return "restarting";
    case v1::Job::STATE_STOPPING:
      return "stopping";
    case v1::Job::STATE_SUCCEEDED:
      return "finished";
    case v1::Job::STATE_FAILED:
      return "failed";
    case v1::Job::STATE_STOPPED:
      return "stopped";
    case v1::Job::STATE_UNSPECIFIED:
      return "unknown";
    default:
      return absl::StrCat("unknown(", static_cast<int>(state), ")");
  }
}

std::string StateTitle(const v1::Job& job) {
  if (WasDropped(job)) return "dropped";
  return WaitsForSweep(job) ? StateTitle(v1::Job::STATE_QUEUED) : StateTitle(job.state());
}

bool WaitsForSweep(const v1::Job& job) {
  return job.state() == v1::Job::STATE_STOPPED && job.stop().mode() == v1::STOP_MODE_AT_STEP &&
         !job.spec().sweep().halve_at().empty() && !WasDropped(job);
}

bool WasDropped(const v1::Job& job) {
  return ReasonFromWord(job.reason()) == Reason::kSweepDropped;
}

}  // namespace nsa
