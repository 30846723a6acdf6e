// Whom the kernel kills when memory runs out. A child has its parent's score: without a word a
// trainer would be spared as the daemon that started it is.
#pragma once

#include <sys/types.h>

#include "absl/status/status.h"

namespace nsa {

// A worker goes before other programs of the machine: it holds the memory, and is restarted.
constexpr int kWorkerOomScore = 100;
// The agent goes after its workers, and before the coordinator.
constexpr int kAgentOomScore = -500;

// Raises /proc/<pid>/oom_score_adj (-1000: never killed, 1000: first of all) to `least`, and never
// lowers it: that needs a privilege. NotFound when the process is gone.
absl::Status RaiseOomScore(pid_t pid, int least);

}  // namespace nsa
