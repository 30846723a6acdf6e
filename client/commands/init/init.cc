// nsactl init: writes a first job file for data, which preflight accepts.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli.h"
#include "client/commands/check_job.h"
#include "client/commands/init/look.h"
#include "client/commands/init/plan.h"
#include "client/connect/job_source.h"
#include "client/connect/local/output_file.h"
#include "client/show/human.h"
#include "client/show/shell_word.h"
#include "common/base/count.h"
#include "common/base/current_folder.h"
#include "common/base/job_file.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace nsa::client {
namespace {

struct InitFlags {
  std::vector<std::string> data, sets;
  std::string file = "job.yaml";
  int minutes = 0;  // 0: by the device
  bool force = false;
  bool offline = false;
};

constexpr int kCpuMinutes = 4;
constexpr int kGpuMinutes = 30;
// Findings are followed one at a time.
constexpr int kMostRounds = 40;

// How the job is judged: by the coordinator, or here.
struct InitJudge {
  InitMachine machine;
  bool offline = false;
};

// Assumes one core, as `nsactl validate --offline` does, which then accepts the file too.
InitJudge JudgeHere() { return {{.in_words = "this machine, without a GPU"}, true}; }

InitMachine MachineOf(const v1::Node& node) {
  const v1::NodeInfo& info = node.info();
  InitMachine machine{.in_words = absl::StrCat(info.name(), ", ", Count(info.cores(), "CPU core")),
                      .cores = std::max(1, info.cores()),
                      .memory_bytes = info.memory_bytes()};
  if (!info.cuda_worker()) return machine;
  for (const v1::GpuInfo& gpu : info.gpus()) {
    if (!gpu.fault().empty() || machine.cuda()) continue;
    machine.in_words = absl::StrCat("one ", gpu.name(), " of ", info.name());
    machine.device = gpu.name();
    machine.memory_bytes = gpu.memory_bytes();
  }
  return machine;
}

// The coordinator's machine with a GPU, or with the most cores. Without a coordinator, this one.
absl::StatusOr<InitJudge> FindJudge(Session& session, const InitFlags& flags) {
  if (flags.offline) return JudgeHere();
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  const absl::StatusOr<v1::ListNodesResponse> nodes = client->ListNodes();
  if (NoAnswer(nodes.status())) {
    session.Note("no coordinator answers; the job file is for this machine, without a GPU");
    return JudgeHere();
  }
  NSA_RETURN_IF_ERROR(nodes.status());
  InitJudge judge;
  judge.machine.in_words = "one CPU core, because no machine is ready";
  bool found = false;
  for (const v1::Node& node : nodes->nodes()) {
    if (node.state() != "READY" || node.has_cordon()) continue;
    const InitMachine machine = MachineOf(node);
    const bool better = machine.cuda() != judge.machine.cuda()
                            ? machine.cuda()
                            : machine.cores > judge.machine.cores;
    if (!found || better) judge.machine = machine;
    found = true;
  }
  return judge;
}

absl::Status ApplyAll(const std::vector<std::string>& sets, v1::JobSpec* spec) {
  for (const std::string& set : sets) NSA_RETURN_IF_ERROR(ApplySet(set, spec).status());
  return absl::OkStatus();
}

// The file as it would be submitted: what is judged is what is written.
absl::StatusOr<v1::JobSpec> SpecIn(const std::string& text, const std::string& file) {
  v1::JobSpec spec;
  NSA_RETURN_IF_ERROR(LoadYamlText(text, file, &spec).status());
  NSA_ASSIGN_OR_RETURN(const std::filesystem::path here, CurrentFolder());
  NSA_RETURN_IF_ERROR(PlaceJob(file, here, &spec));
  return spec;
}

std::vector<std::string> HeadingOf(const InitData& data, const InitJudge& judge) {
  const std::string tokens =
      data.tokens < 0 ? "" : absl::StrCat(", about ", WithCommas(data.tokens), " tokens");
  return {absl::StrCat("Written by nsactl init for ", data.in_words, tokens, " and ",
                       judge.machine.in_words, "."),
          "docs/job_file.md explains every key; nsactl validate checks the file after a change."};
}

struct InitResult {
  std::string text;
  v1::PreflightReport report;
};

// The steps are those of --set.
void DropWhyOfSteps(InitPlan* plan) {
  plan->comments.erase("train.steps");
  plan->limited_by_data = false;
}

// Judges the plan and follows the findings until nothing is left that it can do.
absl::StatusOr<InitResult> Settle(Session& session, const InitFlags& flags, const InitData& data,
                                  const InitJudge& judge, InitPlan plan) {
  InitResult result;
  for (int round = 0; round < kMostRounds; ++round) {
    const int64_t chosen = plan.spec.train().steps();
    NSA_RETURN_IF_ERROR(ApplyAll(flags.sets, &plan.spec));
    if (plan.spec.train().steps() != chosen) DropWhyOfSteps(&plan);
    const std::string text = JobFileText(plan, HeadingOf(data, judge));
    if (text == result.text) break;  // a value of --set stays, whatever the hint
    result.text = text;
    NSA_ASSIGN_OR_RETURN(const v1::JobSpec spec, SpecIn(text, flags.file));
    if (judge.offline) {
      result.report = CheckHere(spec);
    } else {
      NSA_ASSIGN_OR_RETURN(result.report, CheckThere(session, spec));
    }
    if (!FollowFindings(result.report, &plan)) break;
  }
  return result;
}

// The data paths become absolute, so that the file can be submitted from any folder.
absl::Status PlaceData(InitData* data) {
  NSA_ASSIGN_OR_RETURN(const std::filesystem::path here, CurrentFolder());
  v1::JobSpec placed = data->spec;
  NSA_RETURN_IF_ERROR(PlaceJob(absl::StrCat(data->name, ".yaml"), here, &placed));
  data->spec.set_name(placed.name());
  *data->spec.mutable_data() = placed.data();
  if (placed.has_restart()) *data->spec.mutable_restart() = placed.restart();
  if (placed.model().vocab() > 0) data->spec.mutable_model()->set_vocab(placed.model().vocab());
  return absl::OkStatus();
}

double EstimateOf(const v1::PreflightReport& report, const std::string& name) {
  for (const v1::EstimateItem& item : report.estimates()) {
    if (item.name() == name) return item.value();
  }
  return 0;
}

void PrintChoice(Session& session, const InitFlags& flags, const InitResult& result,
                 const InitJudge& judge) {
  const v1::JobSpec& spec = result.report.spec();
  const double parameters = EstimateOf(result.report, "parameters");
  const double seconds = EstimateOf(result.report, "expected time");
  if (session.structured()) {
    session.PrintDocument(nlohmann::ordered_json{{"job_file", flags.file},
                                                 {"name", spec.name()},
                                                 {"machine", judge.machine.in_words},
                                                 {"parameters", parameters},
                                                 {"steps", spec.train().steps()},
                                                 {"seq_len", spec.train().seq_len()},
                                                 {"expected_seconds", seconds}});
    return;
  }
  if (session.flags().format == Format::kName) {
    session.out() << flags.file << "\n";
    return;
  }
  session.out() << flags.file << ": " << spec.name() << ", " << HumanCount(parameters)
                << " parameters, " << Count(spec.train().steps(), "step") << " of "
                << HumanCount(EstimateOf(result.report, "tokens per step")) << " tokens on "
                << judge.machine.in_words << ", about " << HumanDuration(seconds) << "\n";
  for (const v1::Finding& finding : result.report.findings()) {
    session.out() << "  " << (finding.severity() == v1::SEVERITY_WARNING ? "warning " : "note ")
                  << finding.rule() << ": " << finding.field() << ": " << finding.problem() << "; "
                  << finding.fix() << "\n";
  }
  session.Note(absl::StrCat("Next:\n  nsactl submit ", ShellWord(flags.file), " --watch   train\n",
                            "  nsactl validate ", ShellWord(flags.file),
                            "         after you have changed it"));
}

absl::StatusOr<ExitCode> InitJob(Session& session, const InitFlags& flags) {
  if (!flags.force && JobPathExists(flags.file)) {
    return absl::AlreadyExistsError(absl::StrCat(
        flags.file, ": is there already, and stays; name another file with -o, or add --force"));
  }
  v1::JobSpec base;
  NSA_RETURN_IF_ERROR(ApplyAll(flags.sets, &base));
  NSA_ASSIGN_OR_RETURN(InitData data, LookAtData(flags.data, base));
  for (const std::string& note : data.notes) session.Note(note);
  NSA_RETURN_IF_ERROR(PlaceData(&data));
  NSA_ASSIGN_OR_RETURN(const InitJudge judge, FindJudge(session, flags));
  const int minutes = flags.minutes > 0      ? flags.minutes
                      : judge.machine.cuda() ? kGpuMinutes
                                             : kCpuMinutes;
  NSA_ASSIGN_OR_RETURN(InitResult result, Settle(session, flags, data, judge,
                                                 PlanJob(data, judge.machine, 60.0 * minutes)));
  if (!result.report.accepted()) {
    result.report.clear_estimates();
    *session.console().err << FormatReport(result.report, flags.file);
    return absl::InvalidArgumentError(
        absl::StrCat(RefusalText(flags.file, result.report), "; nothing was written"));
  }
  NSA_RETURN_IF_ERROR(WriteOutputFile(flags.file, result.text));
  PrintChoice(session, flags, result, judge);
  return ExitCode::kOk;
}

}  // namespace

void AddInit(Cli* cli) {
  const auto flags = std::make_shared<InitFlags>();
  Options options = cli->Add(
      {.name = "init",
       .what = "Write a first job file for data",
       .group = "Jobs",
       .more =
           "DATA are files of text, JSON lines, Parquet or tokens (also .gz or .zst), patterns in "
           "quotes, folders of them,\nprepared data, URLs and hf:// addresses. Files of several "
           "kinds become a mixture. With a checkpoint among\nthem the job trains that model "
           "on.\nThe file fits the data and the coordinator's machine, or this one if no "
           "coordinator "
           "answers, and preflight\naccepts it: model, sequences, batch, rates, validation, "
           "checkpoints, and an out_dir that is new for each submit.\nIts comments say what was "
           "chosen and why. A file that is there is not replaced without --force.\nHere -o names "
           "the file; --output json prints what was chosen.",
       .examples = "nsactl init book.txt\n"
                   "nsactl init train.jsonl.zst 'notes/*.txt' -o mix.yaml\n"
                   "nsactl init 'hf://datasets/roneneldan/TinyStories/data/*.parquet'\n"
                   "nsactl init book.txt --minutes 30 --set train.seq_len=512\n"
                   "nsactl init ./my-model-checkpoint letters.txt",
       .run = [flags](Session& session) { return InitJob(session, *flags); }});
  options.Argument("DATA", &flags->data,
                   "Files, patterns, folders, URLs, and perhaps a checkpoint");
  options.Text("-o,--file", "FILE", &flags->file, "Job file to write (default: job.yaml)");
  options.Number("--minutes", &flags->minutes, {.least = 1, .most = 60 * 24 * 30},
                 "About how long it may train (default: 4 on CPUs, 30 on a GPU)");
  options.Texts("--set", "FIELD=VALUE", &flags->sets,
                "A field that the file shall have, such as data.tokenizer=gpt2; may be repeated");
  options.Flag("--offline", &flags->offline,
               "Do not ask the coordinator; the file is for this machine's CPU");
  options.Flag("--force", &flags->force, "Replace FILE");
}

}  // namespace nsa::client
