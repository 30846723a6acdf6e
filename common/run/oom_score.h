// Which process the kernel kills when memory runs out (OOM score). A child inherits its parent's
// score, so without a change a worker would be as protected as the daemon that started it.
#pragma once

#include <sys/types.h>

#include "absl/status/status.h"

namespace nsa {

// A worker is killed before other programs of the machine: it uses most memory and is restarted.
constexpr int kWorkerOomScore = 100;
// The agent is killed after its workers and before the coordinator.
constexpr int kAgentOomScore = -500;

// Raises /proc/<pid>/oom_score_adj (-1000: never killed, 1000: killed first) to at least `least`.
// It never lowers the score, which would need a privilege. NotFound if there is no such process.
absl::Status RaiseOomScore(pid_t pid, int least);

}  // namespace nsa
