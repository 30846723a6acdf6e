// nsactl fork: a new job that continues from a checkpoint of another one.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli.h"
#include "client/commands/fork/continued_job.h"
#include "client/commands/submit.h"
#include "client/connect/job_source.h"
#include "common/base/status.h"
#include "common/estimate/schedule.h"

namespace nsa::client {
namespace {

struct ForkFlags {
  std::string job, name;
  int64_t at_step = -1;  // -1: the newest checkpoint; 0: from the beginning
  int64_t decay = 0;     // 0: the schedule stays
  std::vector<std::string> sets;
  bool watch = false;
};

// The checkpoint of --at-step, or the newest, among those that can be read; one without a path for
// step 0.
absl::StatusOr<v1::CheckpointInfo> FindCheckpoint(Client* client, const ForkFlags& flags) {
  if (flags.at_step == 0) return v1::CheckpointInfo();
  NSA_ASSIGN_OR_RETURN(const std::vector<v1::CheckpointInfo> all,
                       ReadableCheckpoints(client, flags.job));
  const v1::CheckpointInfo* found = nullptr;
  for (const v1::CheckpointInfo& checkpoint : all) {
    if (flags.at_step < 0 || checkpoint.step() == flags.at_step) found = &checkpoint;
  }
  if (found != nullptr) return *found;
  return absl::NotFoundError(absl::StrCat(
      flags.at_step < 0 ? "" : absl::StrCat("--at-step: ", flags.at_step, ": "), flags.job,
      " has no such checkpoint; see `nsactl checkpoint list ", flags.job, "`"));
}

// Lowers the learning rate in a straight line over `steps` steps, beginning with that of step
// `from`, so that nothing jumps.
absl::Status Decay(int64_t from, int64_t steps, v1::JobSpec* spec) {
  v1::JobSpec full = *spec;
  ApplyDefaults(&full);
  const int64_t warmup = full.train().warmup_steps();
  if (from < warmup) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--decay: step %d is within the warm-up (at least step %d); choose a later checkpoint",
        from, warmup));
  }
  const double rate = LearningRate(full.train(), from);
  if (!(rate > 0)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--decay: the learning rate of step %d is %g (above 0); choose an earlier checkpoint", from,
        rate));
  }
  v1::TrainSpec* const train = spec->mutable_train();
  if (train->has_muon_lr()) train->set_muon_lr(train->muon_lr() * (rate / full.train().lr()));
  train->set_lr(rate);
  train->set_lr_schedule(v1::LR_SCHEDULE_WSD);
  train->set_decay_steps(steps);
  train->set_steps(from + steps);
  return absl::OkStatus();
}

// The job's spec, changed so that it continues from the checkpoint, with the changes of the flags.
absl::StatusOr<v1::JobSpec> ForkedSpec(const v1::Job& job, const v1::CheckpointInfo& checkpoint,
                                       const ForkFlags& flags) {
  v1::JobSpec spec = ContinuedSpec(
      job, flags.name.empty() ? absl::StrCat(job.name(), "-at-", checkpoint.step()) : flags.name,
      checkpoint.path());
  if (flags.decay > 0) {
    NSA_RETURN_IF_ERROR(Decay(checkpoint.step(), flags.decay, &spec));
  }
  NSA_RETURN_IF_ERROR(ApplySets(flags.sets, &spec));
  return spec;
}

absl::StatusOr<ExitCode> Fork(Session& session, const ForkFlags& flags) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  NSA_ASSIGN_OR_RETURN(const v1::Job job,
                       client->GetJob(flags.job, v1::JOB_USE_UNSPECIFIED, {.raw = true}));
  NSA_ASSIGN_OR_RETURN(const v1::CheckpointInfo checkpoint, FindCheckpoint(client, flags));
  JobFile forked;
  NSA_ASSIGN_OR_RETURN(forked.spec, ForkedSpec(job, checkpoint, flags));
  return SendJob(session, forked,
                 {.name = absl::StrCat("fork of ", job.name()), .watch = flags.watch});
}

}  // namespace

void AddFork(Cli* cli) {
  const auto flags = std::make_shared<ForkFlags>();
  Options options = cli->Add(
      {.name = "fork",
       .what = "Submit a new job that continues from a checkpoint of another one",
       .group = "Jobs",
       .more =
           "The new job has the settings of JOB, an out_dir of its own beside JOB's, and counts "
           "the checkpoint's steps\nas done. --decay ends it after N more steps, in which the "
           "learning rate falls in a straight line from that of\nthe checkpoint to "
           "train.min_lr_ratio times it: several lengths of training from one long run "
           "(lr_schedule:\nwsd or constant). JOB itself goes on. The model, the tokenizer and the "
           "optimizer cannot change, except with\n--at-step 0: that job is a copy of JOB, with the "
           "changes of --set, and begins as JOB did.",
       .examples = "nsactl fork demo --at-step 4000 --decay 1000\n"
                   "nsactl fork demo --name demo-low --set train.lr=1e-4\n"
                   "nsactl fork demo --at-step 0 --name demo-again --set train.seed=2",
       .run = [flags](Session& session) { return Fork(session, *flags); }});
  options.Argument("JOB", &flags->job, "Job id or name");
  options.Number("--at-step", &flags->at_step, {.least = 0},
                 "Step of the checkpoint (default: the newest; 0: from the beginning)");
  options.Number("--decay", &flags->decay, {.least = 1},
                 "Lower the learning rate over this many steps, then end");
  options.Text("--name", "NAME", &flags->name, "Name of the new job (default: JOB-at-STEP)");
  options.Texts("--set", "FIELD=VALUE", &flags->sets,
                "Change a field of the new job; may be repeated");
  options.Flag("-w,--watch", &flags->watch, "Then show its progress until it ends");
}

}  // namespace nsa::client
