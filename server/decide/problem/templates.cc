#include "server/decide/problem/templates.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/reason.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/job/load.h"
#include "server/decide/alert.h"
#include "server/decide/lifecycle.h"

namespace nsa::server {
namespace {

using enum Help;

constexpr ProblemTemplate kTemplates[] = {
    {.words = "DIVERGED",
     .cause = "The run has diverged",
     .keys = "train.lr train.muon_lr train.warmup_steps train.grad_clip",
     .before_end = {kStopNow, kLowerRate},
     .after_end = {kLowerRate, kLog}},
    {.words = "NONFINITE NONFINITE_LOSS NONFINITE_SKIPPED",
     .cause = "The loss is not a number",
     .keys = "train.lr train.muon_lr train.grad_clip runtime.precision",
     .before_end = {kStopNow, kLowerRate},
     .after_end = {kLowerRate, kLog}},
    {.words = "HAD_DIVERGED",
     .cause = "The run had diverged",
     .keys = "train.lr train.muon_lr train.warmup_steps train.grad_clip",
     .before_end = {kLowerRate},
     .after_end = {kLowerRate}},
    {.words = "MEMORY_CREEP",
     .cause = "Its memory grows",
     .keys = "",
     .before_end = {kStop, kLog},
     .after_end = {kResume, kLog}},
    {.words = "GATE_ENTROPY GATE_DOMINANT GATE_SATURATED GATE_COLLAPSE",
     .cause = "A layer's gate uses hardly more than one branch",
     .keys = "train.lr train.muon_lr train.warmup_steps guard.max_gate_collapse",
     .before_end = {kLowerRate, kStop},
     .after_end = {kLowerRate}},
    {.words = "PLATEAU",
     .cause = "The loss has stopped falling",
     .keys = "train.lr train.lr_schedule",
     .before_end = {kStop},
     .after_end = {}},
    {.words = "UNSTEADY_SPEED THROUGHPUT_TOO_LOW FALLBACK",
     .cause = "It trains slower than it should",
     .keys = "guard.min_tokens_per_second",
     .before_end = {kNodes, kStacks},
     .after_end = {kResume, kNodes, kLog}},
    {.words = "DATA_STALLED",
     .cause = "No data is arriving",
     .keys = "data.loader_timeout_seconds",
     .before_end = {kLog, kStacks},
     .after_end = {kResume, kLog}},
    {.words = "DATA_EXHAUSTED",
     .cause = "Its data ran out early",
     .keys = "train.steps train.batch_size train.seq_len",
     .before_end = {kLog},
     .after_end = {kLog, kEvents}},
    {.words = "VAL_SHARE DATA_NOT_UTF8 PACKING",
     .cause = "Its data is not what the job file says",
     .keys = "data.val_fraction train.seq_len",
     .before_end = {kStop, kEvents},
     .after_end = {kEvents}},
    {.words = "CHECKPOINT_UPLOAD_FAILED CHECKPOINT_UPLOAD_LAGS",
     .cause = "Its checkpoints are not uploaded",
     .keys = "train.checkpoint_url",
     .before_end = {kEvents, kLog},
     .after_end = {kResume, kEvents}},
    {.words = "CHECKPOINT_FAILED CHECKPOINT_ABANDONED CHECKPOINT_DELETE_FAILED TELEMETRY_FAILED "
              "LOG_QUOTA SAMPLE_FAILED",
     .cause = "What it writes cannot be stored",
     .keys = "train.out_dir",
     .before_end = {kCheckpoints, kLog},
     .after_end = {kResume, kCheckpoints, kLog}},
    {.words = "NO_VALID_CHECKPOINT CHECKPOINTS_MISSING CHECKPOINT_CORRUPT",
     .cause = "It has no good checkpoint to continue from",
     .keys = "restart.resume train.out_dir",
     .before_end = {kCheckpoints, kEvents},
     .after_end = {kCheckpoints, kAgain}},
    {.words = "WORKER_FAILED RANK_CRASHED RANK_EXITED FAILED_FOR_GOOD",
     .cause = "A rank failed",
     .keys = "",
     .before_end = {kLog, kEvents},
     .after_end = {kLog, kResume}},
    {.words = "PEER_LOST RANK_LOST",
     .cause = "Its ranks lost each other",
     .keys = "",
     .before_end = {kNodes, kLog},
     .after_end = {kResume, kNodes, kLog}},
    {.words = "RANK_KILLED KILLED PREEMPTED",
     .cause = "A rank was killed from outside",
     .keys = "",
     .before_end = {kEvents, kLog},
     .after_end = {kResume, kLog}},
    {.words = "OUT_OF_MEMORY",
     .cause = "Memory ran out",
     .keys = "train.batch_size train.seq_len runtime.gradient_checkpointing",
     .before_end = {kLessMemory, kLog},
     .after_end = {kLessMemory, kLog}},
    {.words = "NODE_LOST NODE_RESTARTED WORKER_VANISHED NODE_GONE ALLOCATION_LOST GPU_FAULT "
              "ALGORITHMS_CHANGED STACKS_NOT_SAVED",
     .cause = "Something is wrong with its machine",
     .keys = "",
     .before_end = {kNodes, kEvents},
     .after_end = {kResume, kNodes}},
    {.words = "HANG HANG_SUSPECTED STACKS_SAVED STOP_GRACE_EXCEEDED",
     .cause = "A rank makes no progress",
     .keys = "restart.hang_timeout_seconds",
     .before_end = {kStacks, kLog},
     .after_end = {kStacks, kResume, kLog}},
    {.words = "NO_PROGRESS RESTART_BUDGET_EXHAUSTED",
     .cause = "It failed and may not start again",
     .keys = "restart.max_restarts restart.max_no_progress train.save_every",
     .before_end = {kLog, kEvents},
     .after_end = {kLog, kEvents, kResume}},
    {.words = "START_FAILED PREFLIGHT_REFUSED OUT_DIR_BUSY",
     .cause = "It cannot start",
     .keys = "train.out_dir",
     .before_end = {kEvents, kNodes},
     .after_end = {kLog, kEvents, kResume}},
    {.words = "PARAMETERS_DIFFER",
     .cause = "Its ranks have different parameters",
     .keys = "guard.hash_every",
     .before_end = {kStopNow, kNodes},
     .after_end = {kCheckpoints, kNodes}},
    {.words = "ALLOCATION_REFUSED ALLOCATION_CANCELLED",
     .cause = "The cluster manager gives it no machines",
     .keys = "resources.provisioner resources.gpus resources.nodes",
     .before_end = {kEvents},
     .after_end = {kResume, kEvents}},
    {.words = "TIME_LIMIT",
     .cause = "It reached its time limit",
     .keys = "limits.hours",
     .before_end = {},
     .after_end = {kResume}},
    {.words = "NO_NODES UNPLACEABLE CORDONED",
     .cause = "No machine has room for it",
     .keys = "resources.gpus resources.nodes",
     .before_end = {kNodes, kStop},
     .after_end = {}},
    {.words = "DEPENDENCY_NEVER_SATISFIED",
     .cause = "It waits for a job that will not finish",
     .keys = "",
     .before_end = {kEvents, kStop},
     .after_end = {}},
    {.words = "ALERT_RAISED",
     .cause = "An alert from its job file is firing",
     .keys = "",
     .before_end = {kEvents, kStop},
     .after_end = {kEvents}},
    {.words = "WAITING_FOR_SLOTS BEHIND_ANOTHER_JOB WAITING_FOR_ALLOCATION WAITING_FOR_QUOTA "
              "WAITING_FOR_TIME WAITING_FOR_JOBS",
     .cause = "It waits for its turn",
     .keys = "resources.gpus resources.nodes",
     .before_end = {kNodes},
     .after_end = {}},
};

// The rank that a text begins with ("rank 3 was killed"); that of a job with one rank; else all.
int32_t RankIn(const v1::Job& job) {
  absl::string_view text = job.message();
  int32_t rank = -1;
  if (absl::ConsumePrefix(&text, "rank ") &&
      absl::SimpleAtoi(text.substr(0, text.find_first_not_of("0123456789")), &rank)) {
    return rank;
  }
  return job.spec().resources().gpus() == 1 ? 0 : -1;
}

v1::Remedy Made(v1::Remedy::Action action, std::string text, std::string command) {
  v1::Remedy remedy;
  remedy.set_action(action);
  remedy.set_text(std::move(text));
  remedy.set_command(std::move(command));
  remedy.set_rank(-1);
  return remedy;
}

// A copy of the job with other settings, from its newest checkpoint before `since_step`, or from
// the beginning.
v1::Remedy CopyWith(const v1::Job& job, const std::vector<std::pair<std::string, std::string>>& set,
                    int64_t since_step) {
  const int64_t saved = job.progress().checkpoint_step();
  const int64_t from = saved < since_step ? saved : 0;
  v1::Remedy remedy =
      Made(v1::Remedy::ACTION_CLONE, from > 0 ? absl::StrCat("Fork from step ", from) : "Clone",
           absl::StrCat("nsactl fork ", job.id(), " --at-step ", from));
  std::string text = remedy.text();
  std::string command = remedy.command();
  for (const auto& [key, value] : set) {
    absl::StrAppend(&text, text == remedy.text() ? " with " : ", ", key, " ", value);
    absl::StrAppend(&command, " --set ", key, "=", value);
    (*remedy.mutable_set())[key] = value;
  }
  if (from > 0) {
    (*remedy.mutable_set())["restart.resume"] =
        CheckpointsDir(job.spec().train().out_dir()) / CheckpointName(from);
  }
  remedy.set_text(std::move(text));
  remedy.set_command(std::move(command));
  return remedy;
}

v1::Remedy LowerRate(const v1::Job& job, int64_t since_step) {
  const v1::TrainSpec& train = job.spec().train();
  std::vector<std::pair<std::string, std::string>> set = {
      {"train.lr", absl::StrFormat("%g", train.lr() / 2)}};
  if (train.has_muon_lr()) {
    set.emplace_back("train.muon_lr", absl::StrFormat("%g", train.muon_lr() / 2));
  }
  return CopyWith(job, set, since_step);
}

// Half the sequences at once, and as many in a step.
std::optional<v1::Remedy> LessMemory(const v1::Job& job) {
  const v1::JobSpec& spec = job.spec();
  const int batch = spec.train().batch_size();
  const int groups =
      std::max(1, spec.resources().gpus() / std::max(1, spec.resources().context_parallel()));
  if (batch % (2 * groups) != 0) {
    if (spec.runtime().gradient_checkpointing()) return std::nullopt;
    return CopyWith(job, {{"runtime.gradient_checkpointing", "true"}}, 0);
  }
  const int passes = std::max(1, spec.train().accumulate_grad_batches());
  return CopyWith(job,
                  {{"train.batch_size", absl::StrCat(batch / 2)},
                   {"train.accumulate_grad_batches", absl::StrCat(2 * passes)}},
                  0);
}

v1::Remedy Resume(const v1::Job& job) {
  const int64_t step = job.progress().checkpoint_step();
  return Made(v1::Remedy::ACTION_RESUME,
              step > 0 ? absl::StrCat("Resume from step ", step) : "Resume from the beginning",
              absl::StrCat("nsactl resume ", job.id()));
}

v1::Remedy Log(const v1::Job& job) {
  const int32_t rank = RankIn(job);
  v1::Remedy remedy = Made(v1::Remedy::ACTION_LOG, "Last 20 lines of the log",
                           absl::StrCat("nsactl logs ", job.id(), " --tail 20"));
  if (rank < 0) return remedy;
  remedy.set_rank(rank);
  if (job.spec().resources().gpus() == 1) return remedy;
  remedy.set_text(absl::StrCat("Last 20 lines of the log of rank ", rank));
  remedy.set_command(absl::StrCat(remedy.command(), " --rank ", rank));
  return remedy;
}

// "key: value" of one scalar field of a section; empty if it is not set.
std::string Setting(const google::protobuf::Message& section,
                    const google::protobuf::FieldDescriptor* wanted) {
  const std::unique_ptr<google::protobuf::Message> only(section.New());
  only->CopyFrom(section);
  const auto* const type = section.GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    if (type->field(i) != wanted) only->GetReflection()->ClearField(only.get(), type->field(i));
  }
  return std::string(absl::StripSuffix(ToYaml(*only), "\n"));
}

// INVALID_ARGUMENT and the like.
std::vector<std::string> ErrorCodes() {
  std::vector<std::string> codes;
  for (int code = 1; code < 17; ++code) {
    codes.push_back(absl::StatusCodeToString(static_cast<absl::StatusCode>(code)));
  }
  return codes;
}

}  // namespace

std::span<const ProblemTemplate> ProblemTemplates() { return kTemplates; }

const ProblemTemplate* TemplateOf(std::string_view word) {
  if (AlertIndex(word) >= 0) word = "ALERT_RAISED";
  for (const ProblemTemplate& row : kTemplates) {
    for (const absl::string_view known :
         absl::StrSplit(absl::string_view(row.words.data(), row.words.size()), ' ')) {
      if (known == absl::string_view(word.data(), word.size())) return &row;
    }
  }
  return nullptr;
}

bool IsReasonWord(std::string_view word) {
  if (ReasonFromWord(word).has_value()) return true;
  const std::vector<std::string> codes = ErrorCodes();
  return std::ranges::find(codes, word) != codes.end();
}

std::vector<std::string> ReasonWords() {
  std::vector<std::string> words;
  for (int i = 0; i < kReasonCount; ++i) words.push_back(Word(static_cast<Reason>(i)));
  std::ranges::copy(ErrorCodes(), std::back_inserter(words));
  return words;
}

std::vector<std::string> SameProblem(std::string_view word) {
  const ProblemTemplate* const row = TemplateOf(word);
  if (row == nullptr || AlertIndex(word) >= 0) return {std::string(word)};
  return absl::StrSplit(std::string(row->words), ' ');
}

std::optional<v1::Remedy> RemedyFor(Help help, const v1::Job& job, int64_t since_step) {
  const std::string& id = job.id();
  const bool ended = IsTerminal(job.state());
  switch (help) {
    case kNone:
      return std::nullopt;
    case kStop:
      if (ended) return std::nullopt;
      return Made(v1::Remedy::ACTION_STOP, "Stop after this step",
                  absl::StrCat("nsactl stop ", id));
    case kStopNow:
      if (ended) return std::nullopt;
      return Made(v1::Remedy::ACTION_STOP, "Stop now", absl::StrCat("nsactl stop ", id, " --now"));
    case kResume:
      if (!ended) return std::nullopt;
      return Resume(job);
    case kLowerRate:
      return LowerRate(job, since_step);
    case kLessMemory:
      return LessMemory(job);
    case kAgain:
      return CopyWith(job, {}, 0);
    case kLog:
      return Log(job);
    case kStacks:
      return Made(v1::Remedy::ACTION_STACKS, "Stacks of its ranks",
                  absl::StrCat("nsactl dump-stack ", id, ended ? " --saved" : ""));
    case kCheckpoints:
      return Made(v1::Remedy::ACTION_CHECKPOINTS, "Its checkpoints",
                  absl::StrCat("nsactl checkpoint list ", id));
    case kNodes:
      return Made(v1::Remedy::ACTION_NODES, "The machines", "nsactl nodes");
    case kEvents:
      return Made(v1::Remedy::ACTION_EVENTS, "What happened", absl::StrCat("nsactl events ", id));
  }
  return std::nullopt;
}

std::vector<std::string> SettingsOf(const v1::JobSpec& spec, std::string_view keys) {
  std::vector<std::string> settings;
  const std::string all(keys);
  for (const absl::string_view key : absl::StrSplit(all, ' ', absl::SkipEmpty())) {
    const size_t dot = key.find('.');
    const auto* const section =
        v1::JobSpec::descriptor()->FindFieldByName(std::string(key.substr(0, dot)));
    if (dot == absl::string_view::npos || section == nullptr ||
        section->message_type() == nullptr || section->is_repeated()) {
      continue;
    }
    const auto* const field =
        section->message_type()->FindFieldByName(std::string(key.substr(dot + 1)));
    if (field == nullptr) continue;
    const std::string text =
        Setting(v1::JobSpec::GetReflection()->GetMessage(spec, section), field);
    if (!text.empty()) settings.push_back(absl::StrCat(key.substr(0, dot), ".", text));
  }
  return settings;
}

}  // namespace nsa::server
