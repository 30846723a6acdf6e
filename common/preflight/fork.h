// Forks: a job that continues from another job's checkpoint (restart.resume: PATH). Checks what
// must be the same in both jobs and lists what differs. Pure.
#pragma once

#include <optional>
#include <string>

#include "nsa/v1/checkpoint.pb.h"
#include "nsa/v1/job.pb.h"

namespace nsa {

struct ForkProblem {
  std::string what;  // "a checkpoint of step 900 (less than train.steps, 500)"
  std::string fix;
};

// Returns why `job` cannot continue from the checkpoint `from`, or nullopt if it can. It can if the
// job that wrote the checkpoint has the same model, nsa and tokenizer, and steps are left to do.
std::optional<ForkProblem> CheckFork(const v1::CheckpointState& from, const v1::JobSpec& job);

// Lists the differences in model, nsa, data and train after defaults are filled in, for example
// "train.lr: 0.001 -> 0.0003; …". Ignores train.out_dir. Empty if nothing differs.
std::string ForkDifferences(const v1::JobSpec& from, const v1::JobSpec& to);

}  // namespace nsa
