// nsactl bisect: the first step, and the first tensor of a checkpoint, in which two runs part.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli.h"
#include "client/commands/view/read_history.h"
#include "client/commands/view/step_log.h"
#include "common/base/count.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_info.h"
#include "common/checkpoint/difference.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

struct Run {
  v1::Job job;
  StepLog log;
  std::vector<CheckpointEntry> checkpoints;
};

absl::StatusOr<Run> ReadRun(Client* client, const std::string& name) {
  Run run;
  NSA_ASSIGN_OR_RETURN(run.job, client->GetJob(name));
  NSA_RETURN_IF_ERROR(
      ReadRecords(client, run.job.id(),
                  [&run](const v1::WatchRecordsResponse& record) { run.log.Add(record); }));
  NSA_ASSIGN_OR_RETURN(const v1::ListCheckpointsResponse found,
                       client->ListCheckpoints(run.job.id()));
  run.checkpoints = EntriesOf(found);
  return run;
}

std::string StepsText(const StepParting& steps) {
  if (steps.compared == 0) return "steps: the coordinator keeps none that both runs have\n";
  if (steps.step == 0) {
    const std::string values =
        steps.hashes == 0
            ? "learning rate, loss and gradient norm"
            : absl::StrCat("learning rate, loss, gradient norm and, in ",
                           Count(steps.hashes, "step"), ", the hash of all parameters");
    return absl::StrFormat("steps: %s compared, up to %d: %s have the same bits\n",
                           Count(steps.compared, "step"), steps.equal_to, values);
  }
  return absl::StrFormat(
      "steps: %s\nstep %d: %s is %s and %s: %s\n",
      steps.equal_to == 0 ? "none is equal" : absl::StrCat("equal up to ", steps.equal_to),
      steps.step, steps.value, steps.a_text, steps.b_text, steps.meaning);
}

std::string CheckpointsText(const CheckpointParting& checkpoints) {
  std::string text;
  for (const std::string& line : checkpoints.unreadable) {
    absl::StrAppend(&text, "checkpoints: not compared: ", line, "\n");
  }
  if (!checkpoints.equal.empty()) {
    absl::StrAppend(&text, "checkpoints: equal weights after step ",
                    absl::StrJoin(checkpoints.equal, ", "), "\n");
  }
  if (checkpoints.difference.has_value()) {
    const WeightDifference& difference = *checkpoints.difference;
    absl::StrAppendFormat(
        &text,
        "checkpoints: after step %d %d of %d tensors differ; the first is %s: element %d is %.9g "
        "and %.9g\n",
        checkpoints.step, difference.differing, difference.tensors, difference.first,
        difference.element, difference.a, difference.b);
  }
  return text.empty() ? "checkpoints: none of a step that both runs have\n" : text;
}

// A hash has more digits than a number of JSON keeps.
nlohmann::ordered_json PartingValue(const StepParting& steps, double number,
                                    const std::string& text) {
  if (steps.value == "parameters_hash") return text;
  return number;
}

nlohmann::ordered_json DocumentOf(const Run& a, const Run& b, const StepParting& steps,
                                  const CheckpointParting& checkpoints) {
  nlohmann::ordered_json document = {
      {"jobs", {a.job.id(), b.job.id()}},
      {"steps",
       {{"compared", steps.compared}, {"equal_to", steps.equal_to}, {"hashes", steps.hashes}}},
      {"checkpoints", {{"equal", checkpoints.equal}, {"not_compared", checkpoints.unreadable}}}};
  if (steps.step != 0) {
    document["steps"]["first"] = {{"step", steps.step},
                                  {"value", steps.value},
                                  {"a", PartingValue(steps, steps.a, steps.a_text)},
                                  {"b", PartingValue(steps, steps.b, steps.b_text)}};
  }
  if (checkpoints.difference.has_value()) {
    const WeightDifference& difference = *checkpoints.difference;
    document["checkpoints"]["first"] = {{"step", checkpoints.step},
                                        {"tensors", difference.tensors},
                                        {"differing", difference.differing},
                                        {"tensor", difference.first},
                                        {"element", difference.element},
                                        {"a", difference.a},
                                        {"b", difference.b}};
  }
  return document;
}

absl::StatusOr<ExitCode> Bisect(Session& session, const std::vector<std::string>& jobs) {
  if (jobs.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("bisect: ", Count(static_cast<int64_t>(jobs.size()), "job"),
                     " (must be 2); name two jobs"));
  }
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const Run a, ReadRun(client, jobs[0]));
  NSA_ASSIGN_OR_RETURN(const Run b, ReadRun(client, jobs[1]));
  const StepParting steps = FindStepParting(a.log, b.log);
  NSA_ASSIGN_OR_RETURN(const CheckpointParting checkpoints,
                       FindParting(a.checkpoints, b.checkpoints));
  if (session.structured()) {
    session.PrintDocument(DocumentOf(a, b, steps, checkpoints));
  } else {
    session.out() << StepsText(steps) << CheckpointsText(checkpoints);
  }
  if (steps.step != 0 || checkpoints.step != 0) return ExitCode::kFailed;
  const bool compared = steps.compared > 0 || !checkpoints.equal.empty();
  return compared ? ExitCode::kOk : ExitCode::kPrecondition;
}

}  // namespace

void AddBisect(Cli* cli) {
  const auto jobs = std::make_shared<std::vector<std::string>>();
  Options options = cli->Add(
      {.name = "bisect",
       .what = "Find the first step and tensor in which two runs differ",
       .group = "Records",
       .more =
           "Two runs of one job must have the same bits. Compares learning rate, loss, "
           "gradient norm and, in the steps that\nhave one, the hash of all parameters of every "
           "step that the coordinator keeps of both (rank 0), then the weights\nof the "
           "checkpoints of the same step, the oldest first. The checkpoints must be on this "
           "machine. The exit code is 0\nif all is equal, 1 if the runs differ, 6 if there was "
           "nothing to compare.",
       .examples = "nsactl bisect my-model my-model-again\n"
                   "nsactl bisect my-model my-model-again -o json | jq .steps.first",
       .run = [jobs](Session& session) { return Bisect(session, *jobs); }});
  options.Argument("JOB", jobs.get(), "Two job ids or names");
}

}  // namespace nsa::client
