// Whole training steps of a job file on this machine's GPU, without data files, checkpoints and
// service: tokens a second, where the time goes, the share of the GPU's matrix speed.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "worker/bench/timing.h"

namespace nsa::bench {

struct StepOptions {
  std::string job;  // file
  int steps = 20;   // timed, after five that do not count

  bool kernels = true;    // the time of each kernel family, too
  bool vs_dense = false;  // then the same model with dense attention: a window of S tokens
};

// Prints the result. Tokens are random.
absl::Status RunStep(const StepOptions& options, const Ceilings& ceilings);

}  // namespace nsa::bench
