// Checkpoints that a job begins with: its own, another job's (restart.resume: PATH) or only the
// weights of one (restart.init). Checks what must be the same in both jobs and lists what differs.
// Pure.
#pragma once

#include <optional>
#include <string>

#include "nsa/v1/checkpoint.pb.h"
#include "nsa/v1/job.pb.h"

namespace nsa {

struct ForkProblem {
  std::string what;  // "a checkpoint of step 900 (less than train.steps = 500)"
  std::string fix;
};

// Returns why `job` cannot begin with the weights of the checkpoint `from`, or nullopt if it can.
// It can if the job that wrote the checkpoint has the same parameters and tokenizer: what has no
// parameters, such as n_sel, w, rope_scale, qk_norm, activation and the kind of gate, may
// differ.
std::optional<ForkProblem> CheckWeights(const v1::CheckpointState& from, const v1::JobSpec& job);

// Returns why `job` cannot continue from another job's checkpoint `from`, or nullopt if it can. It
// can if it can begin with its weights, the optimizer is the same, and steps are left to do.
std::optional<ForkProblem> CheckFork(const v1::CheckpointState& from, const v1::JobSpec& job);

// Returns why `job` cannot continue from `from`, a checkpoint in its own out_dir, or nullopt if it
// can: what JobHash() covers must be the same. The problem names the keys that differ.
std::optional<ForkProblem> CheckOwn(const v1::CheckpointState& from, const v1::JobSpec& job);

// Lists the differences in model, nsa, data and train after defaults are filled in, for example
// "train.lr: 0.001 -> 0.0003; …". Ignores train.out_dir. Empty if nothing differs.
std::string ForkDifferences(const v1::JobSpec& from, const v1::JobSpec& to);

// Lists the fields in which two specs differ, in the same form.
std::string Differences(const v1::JobSpec& from, const v1::JobSpec& to);

// What must not change when a job is resumed with another spec, as "nsa.w: 512 -> 256; …". Empty if
// nothing did.
std::string FixedDifferences(const v1::JobSpec& before, const v1::JobSpec& after);

// The jump of the learning rate at a checkpoint of the job's own out_dir, whose schedule depends on
// train.steps: "train.steps: 240 -> 480 changes the learning rate of step 121 from 0.0004 to
// 0.00218". Nothing if it does not jump.
std::optional<std::string> ScheduleJump(const v1::CheckpointState& from, const v1::JobSpec& job);

}  // namespace nsa
