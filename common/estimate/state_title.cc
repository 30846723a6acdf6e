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

bool NamesStep(std::string_view text, int64_t step) {
  const std::string name = absl::StrCat("step ", step);
  for (size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    const size_t end = at + name.size();
    if (end == text.size() || text[end] < '0' || text[end] > '9') return true;
  }
  return false;
}

std::string EndText(const v1::WorkerFinished& end) {
  // Of a good end the text is "all 500 steps done", or says why it came earlier and where.
  const bool well = end.outcome() == v1::OUTCOME_COMPLETED || end.outcome() == v1::OUTCOME_STOPPED;
  const bool named = !end.text().empty() && (well || NamesStep(end.text(), end.step()));
  return absl::StrCat(end.reason(), named ? "" : absl::StrCat(" after step ", end.step()),
                      end.text().empty() ? "" : ": ", end.text());
}

}  // namespace nsa
