// Rules about where a job begins: at a checkpoint of its out_dir, at another job's, with the
// weights of one, or afresh.
#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clean_text.h"
#include "common/base/count.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/preflight/fork.h"
#include "common/preflight/rules.h"

namespace nsa {
namespace {

// The checkpoints that a path names: itself, or those of an out_dir, oldest first; none if it is
// neither.
std::vector<CheckpointEntry> CheckpointsNamed(const std::string& path) {
  const std::optional<std::filesystem::path> newest = LookUpNamed(path);
  if (!newest.has_value()) return {};
  std::error_code error;
  if (std::filesystem::exists(std::filesystem::path(path) / "state.json", error)) {
    return {{.path = *newest}};
  }
  return ListCheckpoints(path).value_or(std::vector<CheckpointEntry>{{.path = *newest}});
}

// The state of the newest checkpoint whose state can be read; if none can, why that of the newest
// cannot. The worker, which compares the hashes of all files, passes damaged ones in the same way.
std::optional<absl::StatusOr<v1::CheckpointState>> NewestState(
    const std::vector<CheckpointEntry>& checkpoints) {
  std::optional<absl::StatusOr<v1::CheckpointState>> newest;
  for (auto entry = checkpoints.rbegin(); entry != checkpoints.rend(); ++entry) {
    absl::StatusOr<v1::CheckpointState> state = ReadCheckpointState(entry->path);
    if (!newest.has_value() || state.ok()) newest = std::move(state);
    if (newest->ok()) break;
  }
  return newest;
}

// The state of the checkpoint of out_dir from which the job continues, or null.
const v1::CheckpointState* OwnState(const PreflightFacts& facts) {
  const StartFacts& start = facts.start;
  const bool own = start.from == ResumeFrom::kOwn && start.state.has_value() && start.state->ok();
  return own ? &**start.state : nullptr;
}

std::string NotACheckpoint(const std::string& path) {
  return absl::StrFormat(
      "%s is not a checkpoint (a folder with state.json) and no out_dir with checkpoints",
      CutText(path, 256));
}

Problems ResumeNotFound(const PreflightFacts& facts) {
  if (facts.start.from != ResumeFrom::kNamed || facts.start.state.has_value()) return {};
  return {{"restart.resume", NotACheckpoint(facts.spec.restart().resume()),
           "give the path of a step-… folder or of an out_dir, or set auto or never"}};
}

// The problem of a checkpoint that exists, as `check` sees it.
Problems Mismatch(const std::string& field, const absl::StatusOr<v1::CheckpointState>& state,
                  const v1::JobSpec& spec, decltype(CheckFork)* check) {
  if (!state.ok()) {
    return {{field, std::string(state.status().message()), "choose another checkpoint"}};
  }
  const std::optional<ForkProblem> problem = check(*state, spec);
  if (!problem.has_value()) return {};
  return {{field, problem->what, problem->fix}};
}

// If the named checkpoint exists, it must be readable and the job must be able to continue from it.
Problems ResumeMismatch(const PreflightFacts& facts) {
  if (facts.start.from != ResumeFrom::kNamed || !facts.start.state.has_value()) return {};
  return Mismatch("restart.resume", *facts.start.state, facts.spec, CheckFork);
}

Problems InitInvalid(const PreflightFacts& facts) {
  const std::string& init = facts.spec.restart().init();
  if (init.empty()) return {};
  if (NamesCheckpoint(facts.spec.restart())) {
    return {{"restart.init", "is set together with restart.resume: PATH (one of them)",
             "keep resume to continue from a checkpoint, or init to begin with its weights"}};
  }
  if (!facts.context.check_files || OwnState(facts) != nullptr) return {};
  const auto state = NewestState(CheckpointsNamed(init));
  if (!state.has_value()) {
    return {{"restart.init", NotACheckpoint(init),
             "give the path of a step-… folder or of an out_dir, or remove the key"}};
  }
  return Mismatch("restart.init", *state, facts.spec, CheckWeights);
}

Problems OutDirDiffers(const PreflightFacts& facts) {
  const v1::CheckpointState* const own = OwnState(facts);
  if (own == nullptr) return {};
  const std::optional<ForkProblem> problem = CheckOwn(*own, facts.spec);
  if (!problem.has_value()) return {};
  return {{"train.out_dir", problem->what, problem->fix}};
}

// At the launch of a job that was started before, the worker says it with all reasons.
Problems OutDirUnreadable(const PreflightFacts& facts) {
  const StartFacts& start = facts.start;
  const bool own = start.from == ResumeFrom::kOwn && start.state.has_value();
  if (!own || start.state->ok() || !facts.context.job_id.empty()) return {};
  return {{"train.out_dir",
           absl::StrFormat("%s has %s (one must be readable): %s", facts.spec.train().out_dir(),
                           Count(start.own, "checkpoint"), start.state->status().message()),
           "restore one, or take another out_dir to start afresh"}};
}

Problems OutDirNotEmpty(const PreflightFacts& facts) {
  if (facts.start.from != ResumeFrom::kNever || facts.start.own == 0) return {};
  return {{"restart.resume",
           absl::StrFormat("never, but %s has %s (must have none)", facts.spec.train().out_dir(),
                           Count(facts.start.own, "checkpoint")),
           "take another out_dir, or resume: auto"}};
}

// A job that was started before may have been lost after its last checkpoint.
Problems NothingToDo(const PreflightFacts& facts) {
  const v1::CheckpointState* const own = OwnState(facts);
  const int64_t steps = facts.spec.train().steps();
  if (own == nullptr || !facts.context.job_id.empty() || own->step() < steps) return {};
  return {{"train.steps",
           absl::StrFormat("%d, and %s has a checkpoint of step %d: no step is left to do", steps,
                           facts.spec.train().out_dir(), own->step()),
           "raise train.steps to train it further, or take another out_dir to start afresh"}};
}

Problems ScheduleChanged(const PreflightFacts& facts) {
  const v1::CheckpointState* const own = OwnState(facts);
  if (own == nullptr || facts.spec.restart().allow_new_schedule()) return {};
  if (CheckOwn(*own, facts.spec).has_value()) return {};  // OUT_DIR_DIFFERS says it
  const std::optional<std::string> jump = ScheduleJump(*own, facts.spec);
  if (!jump.has_value()) return {};
  return {{"train.steps", absl::StrCat(*jump, ", in the middle of the run"),
           "set restart.allow_new_schedule: true if you want that, or lr_schedule: constant from "
           "the start of a run that may become longer"}};
}

constexpr PreflightRule kStartRules[] = {
    {"RESUME_NOT_FOUND", "the checkpoint to resume from does not exist", kError, kError, false,
     kNothing, ResumeNotFound, kMayPass},
    {"RESUME_MISMATCH", "the checkpoint to resume from does not fit the job", kError, kError, false,
     kNothing, ResumeMismatch},
    {"INIT_INVALID", "the checkpoint to take the weights from does not exist or fit the job",
     kError, kError, false, kNothing, InitInvalid, kMayPass},
    {"OUT_DIR_DIFFERS", "out_dir has checkpoints of a job with other settings", kError, kError,
     false, kNothing, OutDirDiffers},
    {"OUT_DIR_UNREADABLE", "out_dir has checkpoints, and none can be read", kError, kError, false,
     kNothing, OutDirUnreadable},
    {"OUT_DIR_NOT_EMPTY", "restart.resume is never, but out_dir has checkpoints", kError, kError,
     false, kNothing, OutDirNotEmpty},
    {"NOTHING_TO_DO", "out_dir has a checkpoint of the last step", kError, kError, false, kNothing,
     NothingToDo},
    {"SCHEDULE_CHANGED", "other steps change the learning rate in the middle of the run", kError,
     kError, false, kNothing, ScheduleChanged},
};

}  // namespace

std::span<const PreflightRule> StartRules() { return kStartRules; }

StartFacts ReadStart(const v1::JobSpec& spec, const PreflightContext& context) {
  StartFacts start;
  if (!context.check_files) return start;
  const std::string& out_dir = spec.train().out_dir();
  std::vector<CheckpointEntry> own;
  if (out_dir.starts_with('/')) {
    own = ListCheckpoints(out_dir).value_or(std::vector<CheckpointEntry>());
  }
  start.own = std::ssize(own);
  start.from = ResumeFromOf(spec.restart(), context.restarted, !own.empty());
  if (start.from == ResumeFrom::kOwn) start.state = NewestState(own);
  if (start.from == ResumeFrom::kNamed) {
    start.state = NewestState(CheckpointsNamed(spec.restart().resume()));
  }
  return start;
}

int64_t StepsDone(const PreflightFacts& facts) {
  const auto& state = facts.start.state;
  return state.has_value() && state->ok() ? (*state)->step() : 0;
}

int64_t StepsLeft(const PreflightFacts& facts) {
  return std::max<int64_t>(0, facts.spec.train().steps() - StepsDone(facts));
}

std::string StartText(const PreflightFacts& facts) {
  const std::string& out_dir = facts.spec.train().out_dir();
  if (!facts.context.check_files || !out_dir.starts_with('/')) return {};
  const v1::RestartSpec& restart = facts.spec.restart();
  if (facts.start.from == ResumeFrom::kNamed) {
    return absl::StrFormat("continues from %s, in %s", restart.resume(), out_dir);
  }
  if (const v1::CheckpointState* const own = OwnState(facts)) {
    return absl::StrFormat("continues from step %d of %s", own->step(), out_dir);
  }
  if (facts.start.state.has_value()) {
    return absl::StrFormat("has %s in %s, and none can be read",
                           Count(facts.start.own, "checkpoint"), out_dir);
  }
  if (!restart.init().empty()) {
    return absl::StrFormat("starts with the weights of %s, in %s", restart.init(), out_dir);
  }
  return absl::StrFormat("starts afresh in %s", out_dir);
}

}  // namespace nsa
