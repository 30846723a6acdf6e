#include "worker/agent/link/silence.h"

namespace nsa::agent {

bool IsOverdue(const Silence& silence, const SilenceLimits& limits) {
  return silence.since_answer >= limits.patience && silence.since_opened >= limits.patience;
}

SilenceStep NextStep(const Silence& silence, const SilenceLimits& limits) {
  if (!IsOverdue(silence, limits) || !silence.accepts) return SilenceStep::kWait;
  return silence.fresh < limits.fresh ? SilenceStep::kReopen : SilenceStep::kEnd;
}

}  // namespace nsa::agent
