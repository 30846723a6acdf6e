// Rules about where a job begins: at a checkpoint of its out_dir, at another job's, with the
// weights of one, or afresh.
#include <algorithm>
#include <filesystem>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clean_text.h"
#include "common/base/count.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/preflight/fork.h"
#include "common/preflight/rules.h"

namespace nsa {
namespace {

// Whether restart.resume names a folder.
bool NamesCheckpoint(const std::string& resume) {
  return !resume.empty() && resume != "auto" && resume != "never";
}

// The job's own checkpoints; none if out_dir may not be read.
std::vector<CheckpointEntry> OwnCheckpoints(const PreflightFacts& facts) {
  const std::string& out_dir = facts.spec.train().out_dir();
  if (!facts.context.check_files || !out_dir.starts_with('/')) return {};
  return ListCheckpoints(out_dir).value_or(std::vector<CheckpointEntry>());
}

// Whether the job begins at the checkpoint that restart.resume names. A job that was started before
// and has checkpoints of its own continues from those instead.
bool StartsFromNamedCheckpoint(const PreflightFacts& facts) {
  if (!facts.context.check_files || !NamesCheckpoint(facts.spec.restart().resume())) return false;
  return facts.context.job_id.empty() || OwnCheckpoints(facts).empty();
}

// The state of the newest checkpoint of out_dir, if the job continues from it. What is wrong with a
// damaged one, the worker says: it then takes the one before.
std::optional<v1::CheckpointState> OwnState(const PreflightFacts& facts) {
  const bool named = StartsFromNamedCheckpoint(facts);
  const bool never = facts.spec.restart().resume() == "never" && facts.context.job_id.empty();
  const std::vector<CheckpointEntry> own = OwnCheckpoints(facts);
  if (named || never || own.empty()) return std::nullopt;
  absl::StatusOr<v1::CheckpointState> state = ReadCheckpointState(own.back().path);
  if (!state.ok()) return std::nullopt;
  return *std::move(state);
}

std::string NotACheckpoint(const std::string& path) {
  return absl::StrFormat(
      "%s is not a checkpoint (a folder with state.json) and no out_dir with checkpoints",
      CutText(path, 256));
}

Problems ResumeNotFound(const PreflightFacts& facts) {
  const std::string& resume = facts.spec.restart().resume();
  if (!StartsFromNamedCheckpoint(facts) || LookUpNamed(resume).has_value()) return {};
  return {{"restart.resume", NotACheckpoint(resume),
           "give the path of a step-… folder or of an out_dir, or set auto or never"}};
}

// The problem of the checkpoint at `path`, which exists, as `check` sees it.
Problems Mismatch(const std::string& field, const std::filesystem::path& path,
                  const v1::JobSpec& spec, decltype(CheckFork)* check) {
  const absl::StatusOr<v1::CheckpointState> state = ReadCheckpointState(path);
  if (!state.ok()) {
    return {{field, std::string(state.status().message()), "choose another checkpoint"}};
  }
  const std::optional<ForkProblem> problem = check(*state, spec);
  if (!problem.has_value()) return {};
  return {{field, problem->what, problem->fix}};
}

// If the named checkpoint exists, it must be readable and the job must be able to continue from it.
Problems ResumeMismatch(const PreflightFacts& facts) {
  if (!StartsFromNamedCheckpoint(facts)) return {};
  const auto named = LookUpNamed(facts.spec.restart().resume());
  if (!named.has_value()) return {};
  return Mismatch("restart.resume", *named, facts.spec, CheckFork);
}

Problems InitInvalid(const PreflightFacts& facts) {
  const std::string& init = facts.spec.restart().init();
  if (init.empty()) return {};
  if (NamesCheckpoint(facts.spec.restart().resume())) {
    return {{"restart.init", "is set together with restart.resume: PATH (one of them)",
             "keep resume to continue from a checkpoint, or init to begin with its weights"}};
  }
  if (!facts.context.check_files || OwnState(facts).has_value()) return {};
  const auto named = LookUpNamed(init);
  if (!named.has_value()) {
    return {{"restart.init", NotACheckpoint(init),
             "give the path of a step-… folder or of an out_dir, or remove the key"}};
  }
  return Mismatch("restart.init", *named, facts.spec, CheckWeights);
}

Problems OutDirDiffers(const PreflightFacts& facts) {
  const std::optional<v1::CheckpointState> own = OwnState(facts);
  if (!own.has_value()) return {};
  const std::optional<ForkProblem> problem = CheckOwn(*own, facts.spec);
  if (!problem.has_value()) return {};
  return {{"train.out_dir", problem->what, problem->fix}};
}

Problems OutDirNotEmpty(const PreflightFacts& facts) {
  const auto own = static_cast<int64_t>(OwnCheckpoints(facts).size());
  const bool never = facts.spec.restart().resume() == "never" && facts.context.job_id.empty();
  if (!never || own == 0) return {};
  return {{"restart.resume",
           absl::StrFormat("never, but %s has %s (must have none)", facts.spec.train().out_dir(),
                           Count(own, "checkpoint")),
           "take another out_dir, or resume: auto"}};
}

// A job that was started before may have been lost after its last checkpoint.
Problems NothingToDo(const PreflightFacts& facts) {
  const std::optional<v1::CheckpointState> own = OwnState(facts);
  const int64_t steps = facts.spec.train().steps();
  if (!own.has_value() || !facts.context.job_id.empty() || own->step() < steps) return {};
  return {{"train.steps",
           absl::StrFormat("%d, and %s has a checkpoint of step %d: no step is left to do", steps,
                           facts.spec.train().out_dir(), own->step()),
           "raise train.steps to train it further, or take another out_dir to start afresh"}};
}

Problems ScheduleChanged(const PreflightFacts& facts) {
  const std::optional<v1::CheckpointState> own = OwnState(facts);
  if (!own.has_value() || facts.spec.restart().allow_new_schedule()) return {};
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
    {"OUT_DIR_NOT_EMPTY", "restart.resume is never, but out_dir has checkpoints", kError, kError,
     false, kNothing, OutDirNotEmpty},
    {"NOTHING_TO_DO", "out_dir has a checkpoint of the last step", kError, kError, false, kNothing,
     NothingToDo},
    {"SCHEDULE_CHANGED", "other steps change the learning rate in the middle of the run", kError,
     kError, false, kNothing, ScheduleChanged},
};

}  // namespace

std::span<const PreflightRule> StartRules() { return kStartRules; }

int64_t StepsDone(const PreflightFacts& facts) {
  if (StartsFromNamedCheckpoint(facts)) {
    const auto named = LookUpNamed(facts.spec.restart().resume());
    const auto state =
        named.has_value() ? ReadCheckpointState(*named) : absl::StatusOr<v1::CheckpointState>();
    return state.ok() ? state->step() : 0;
  }
  const std::optional<v1::CheckpointState> own = OwnState(facts);
  return own.has_value() ? own->step() : 0;
}

int64_t StepsLeft(const PreflightFacts& facts) {
  return std::max<int64_t>(0, facts.spec.train().steps() - StepsDone(facts));
}

std::string StartText(const PreflightFacts& facts) {
  const std::string& out_dir = facts.spec.train().out_dir();
  if (!facts.context.check_files || !out_dir.starts_with('/')) return {};
  const v1::RestartSpec& restart = facts.spec.restart();
  if (StartsFromNamedCheckpoint(facts)) {
    return absl::StrFormat("continues from %s, in %s", restart.resume(), out_dir);
  }
  if (const std::optional<v1::CheckpointState> own = OwnState(facts)) {
    return absl::StrFormat("continues from step %d of %s", own->step(), out_dir);
  }
  if (!restart.init().empty()) {
    return absl::StrFormat("starts with the weights of %s, in %s", restart.init(), out_dir);
  }
  return absl::StrFormat("starts afresh in %s", out_dir);
}

}  // namespace nsa
