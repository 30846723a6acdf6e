// Times whole training steps of a job file on this machine's GPU, without its data files or the
// service: tokens per second, time per kernel, share of the GPU's matrix product speed.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/estimate/memory/memory.h"
#include "worker/bench/timing.h"

namespace nsa::bench {

struct StepOptions {
  std::string job;  // file
  int steps = 20;   // timed steps, after five that are not counted

  // What backward recomputes; default: what RecomputeOf() says for the GPU's free memory.
  std::optional<Recompute> recompute = {};

  // A checkpoint and a text file: see TrainedStart() (start.h). Both or none: RandomStart().
  std::string checkpoint;
  std::string text;

  bool kernels = true;    // also print the time of each kernel family
  bool vs_dense = false;  // then time the same model with dense attention: a window of S tokens
};

// Prints the result. Dense attention, which chooses no blocks, always has random weights and
// tokens.
absl::Status RunStep(const StepOptions& options, const Ceilings& ceilings);

}  // namespace nsa::bench
