// Going on from another job's checkpoint (restart.resume: PATH): what must be the same, and what is
// not. Pure.
#pragma once

#include <optional>
#include <string>

#include "nsa/v1/checkpoint.pb.h"
#include "nsa/v1/job.pb.h"

namespace nsa {

struct ForkProblem {
  std::string what;  // "checkpoint of step 900 (less than train.steps, 500)"
  std::string fix;
};

// Nothing when `job` can go on from the checkpoint: model, nsa and tokenizer are those of the job
// that wrote it, and there are steps left to do.
std::optional<ForkProblem> CheckFork(const v1::CheckpointState& from, const v1::JobSpec& job);

// What of model, nsa, data and train differs, defaults filled in: "train.lr: 0.001 -> 0.0003; …".
// Empty when nothing does but where the output goes.
std::string ForkDifferences(const v1::JobSpec& from, const v1::JobSpec& to);

}  // namespace nsa
