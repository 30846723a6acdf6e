// nsactl replay: repeats steps of a job from a checkpoint and says whether the bits agree.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli.h"
#include "client/commands/fork/continued_job.h"
#include "client/commands/fork/replay_verdict.h"
#include "client/commands/submit.h"
#include "client/commands/view/read_history.h"
#include "client/connect/follow.h"
#include "client/connect/job_source.h"
#include "client/connect/local/out_dir.h"
#include "client/connect/resend.h"
#include "client/show/job_text.h"
#include "common/base/count.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/estimate/fewer_ranks.h"
#include "common/estimate/state_title.h"

namespace nsa::client {
namespace {

struct ReplayFlags {
  std::string job;
  int64_t step = 0;   // 0: the last one with a hash
  int64_t from = -1;  // 0: the beginning; -1: the newest checkpoint before the step
  std::vector<std::string> sets;
  bool keep = false;
};

absl::StatusOr<RankLogs> ReadRankLogs(Client* client, const std::string& id) {
  RankLogs logs;
  NSA_RETURN_IF_ERROR(ReadRecords(
      client, id,
      [&logs](const v1::WatchRecordsResponse& record) { logs[record.rank()].Add(record); }, -1));
  std::erase_if(logs, [](const auto& rank) { return rank.second.steps().empty(); });
  return logs;
}

// The step of --step, or the last one with a hash of the parameters.
absl::StatusOr<int64_t> LastStep(const RankLogs& original, const ReplayFlags& flags) {
  if (original.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("replay: the coordinator keeps no step of ",
                                                      flags.job, "; name a job that has trained"));
  }
  const auto& steps = original.begin()->second.steps();
  if (flags.step > 0) {
    if (steps.contains(flags.step)) return flags.step;
    return absl::FailedPreconditionError(
        absl::StrFormat("--step: %d (the coordinator keeps steps %d to %d of %s); name one of them",
                        flags.step, steps.begin()->first, steps.rbegin()->first, flags.job));
  }
  const auto hashed = std::find_if(steps.rbegin(), steps.rend(), [](const auto& each) {
    return each.second.has_parameters_hash();
  });
  if (hashed != steps.rend()) return hashed->first;
  return absl::FailedPreconditionError(
      absl::StrCat("replay: no step of ", flags.job,
                   " has a hash of the parameters (multiples of guard.hash_every and the last one "
                   "have); name a step "
                   "by --step"));
}

// The checkpoint of --from, or the newest before `step`. One of step 0 without a path stands for
// the job's beginning.
absl::StatusOr<v1::CheckpointInfo> FindStart(Client* client, const ReplayFlags& flags,
                                             int64_t step) {
  if (flags.from == 0) return v1::CheckpointInfo();
  NSA_ASSIGN_OR_RETURN(const std::vector<v1::CheckpointInfo> all,
                       ReadableCheckpoints(client, flags.job));
  const v1::CheckpointInfo* found = nullptr;
  std::vector<int64_t> kept;
  for (const v1::CheckpointInfo& checkpoint : all) {
    kept.push_back(checkpoint.step());
    if (checkpoint.step() >= step) continue;
    if (flags.from < 0 || checkpoint.step() == flags.from) found = &checkpoint;
  }
  if (found != nullptr) return *found;
  const std::string limit = kept.empty()
                                ? "no checkpoint of it is kept"
                                : absl::StrCat("kept are those of ", absl::StrJoin(kept, ", "));
  if (flags.from > 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("--from: %d (the step of a checkpoint of %s before step %d; %s); name "
                        "another one, or 0 for the job's beginning",
                        flags.from, flags.job, step, limit));
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "--step: %d (a step of %s after a checkpoint; %s); name a later one, or repeat the job from "
      "its beginning by --from 0",
      step, flags.job, limit));
}

absl::Status StopAfter(Session& session, Client* client, const std::string& id, int64_t step) {
  v1::StopJobRequest request;
  request.set_job(id);
  request.mutable_stop()->set_mode(v1::STOP_MODE_AT_STEP);
  request.mutable_stop()->set_at_step(step);
  const absl::Status stopped =
      Resend(session, [&] { return client->Call<v1::StopJobResponse>(request); }).status();
  if (stopped.ok()) return stopped;
  return Annotate(stopped,
                  absl::StrFormat("the replay goes on after step %d; end it by `nsactl stop "
                                  "%s` and try again",
                                  step, id));
}

// The steps after `start` up to `step` must have been made with the same number of ranks.
absl::Status CheckRanks(const RankLogs& all, int64_t start, int64_t step) {
  const int64_t first = FirstWithSameRanks(all, start, step);
  if (first == start + 1) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "--from: %d (steps %d to %d were made by %s, step %d by another number, and their sums have "
      "other bits); name a checkpoint of step %d or later, or a step up to %d by --step",
      start, first, step, Count(static_cast<int64_t>(RanksOfStep(all, step).size()), "rank"),
      first - 1, first - 1, first - 1));
}

// The replay as it was submitted.
struct SubmittedReplay {
  v1::Job job;
  std::string folder;       // its out_dir
  bool own_folder = false;  // its name was made up here
  int64_t steps = 0;        // train.steps
};

// Submits the replay, which runs with `ranks` ranks.
absl::StatusOr<SubmittedReplay> Submit(Session& session, const v1::Job& original,
                                       const v1::CheckpointInfo& start, const ReplayFlags& flags,
                                       int64_t step, int32_t ranks) {
  NSA_ASSIGN_OR_RETURN(const std::string unique, NewRequestId());
  const std::string ending = absl::StrCat("-replay-", step, "-", unique.substr(0, 8));
  JobFile replay;
  replay.spec = ContinuedSpec(
      original, original.name().substr(0, limits::kJobNameBytes - ending.size()) + ending,
      start.path());
  const std::string own_folder = replay.spec.train().out_dir();
  if (nsa::HasFewerRanks(replay.spec, ranks)) {
    replay.spec = WithFewerRanks(replay.spec, ranks,
                                 std::min(ranks, std::max(replay.spec.resources().nodes(), 1)));
  }
  replay.spec.mutable_restart()->clear_min_ranks();  // other sums would have other bits
  NSA_RETURN_IF_ERROR(ApplySets(flags.sets, &replay.spec));
  NSA_ASSIGN_OR_RETURN(
      const v1::SubmitJobResponse submitted,
      Send(session, replay, {.name = absl::StrCat("replay of ", original.name())}));
  const std::string folder = replay.spec.train().out_dir();
  ApplyDefaults(&replay.spec);
  return SubmittedReplay{.job = submitted.job(),
                         .folder = folder,
                         .own_folder = folder == own_folder,
                         .steps = replay.spec.train().steps()};
}

// Waits until the job has ended, over restarts of the coordinator.
absl::StatusOr<v1::Job> WaitForEnd(Session& session, Client* client, const std::string& id) {
  v1::WatchRecordsRequest request;
  request.set_job(id);
  request.set_follow(true);
  NSA_RETURN_IF_ERROR(Follow(session, id, [&] {
    return client->Stream<v1::WatchRecordsResponse>(request,
                                                    [&](const v1::WatchRecordsResponse& record) {
                                                      request.set_after_position(record.position());
                                                      return true;
                                                    });
  }));
  return client->GetJob(id);
}

// The records of all ranks of a job that has ended. Those of a machine that reports late may come
// a moment after the end.
absl::StatusOr<RankLogs> ReadEnded(Session& session, Client* client, const std::string& id,
                                   size_t ranks, int64_t step) {
  constexpr int kLooks = 25;
  for (int look = 1;; ++look) {
    NSA_ASSIGN_OR_RETURN(RankLogs logs, ReadRankLogs(client, id));
    const bool all = logs.size() >= ranks && std::ranges::all_of(logs, [step](const auto& rank) {
                       return rank.second.steps().contains(step);
                     });
    if (all || look == kLooks) return logs;
    if (!session.interrupt().SleepFor(absl::Milliseconds(200))) {
      return absl::CancelledError("interrupted");
    }
  }
}

absl::Status DeleteReplay(Client* client, const v1::Job& job) {
  v1::DeleteJobRequest request;
  request.set_job(job.id());
  NSA_ASSIGN_OR_RETURN(*request.mutable_request_id(), NewRequestId());
  return client->Call<v1::DeleteJobResponse>(request).status();
}

// Waits for the end of the replay and compares it with the original; true if all is equal.
absl::StatusOr<bool> WaitAndCompare(Session& session, Client* client,
                                    const SubmittedReplay& submitted, const RankLogs& original,
                                    Replay* replay) {
  if (replay->step < submitted.steps) {
    NSA_RETURN_IF_ERROR(StopAfter(session, client, submitted.job.id(), replay->step));
  }
  session.Note(absl::StrFormat(
      "replay %s: repeats steps %d to %d of %s from %s, in %s; it waits for its end (Ctrl-C leaves "
      "the replay running)",
      Title(submitted.job), replay->checkpoint_step + 1, replay->step, Title(replay->original),
      replay->checkpoint_step == 0 ? "its beginning"
                                   : absl::StrCat("the checkpoint of ", replay->checkpoint_step),
      submitted.folder));
  NSA_ASSIGN_OR_RETURN(replay->replay, WaitForEnd(session, client, submitted.job.id()));
  NSA_ASSIGN_OR_RETURN(const RankLogs again, ReadEnded(session, client, submitted.job.id(),
                                                       original.size(), replay->step));
  const ReplayVerdict verdict = JudgeReplay(original, again);
  const bool differs = verdict.parting.step != 0;
  if (!differs && verdict.last < replay->step) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "replay: equal up to step %d (%d wanted), where it ended: %s, %s; look at it with `nsactl "
        "describe %s`",
        verdict.last, replay->step, StateTitle(replay->replay), ReasonText(replay->replay),
        replay->replay.id()));
  }
  if (session.structured()) {
    session.PrintDocument(VerdictDocument(*replay, verdict));
  } else {
    session.out() << VerdictText(*replay, verdict) << std::flush;
  }
  return !differs;
}

// Deletes the replay and the folder that was made for it.
absl::Status RemoveReplay(Session& session, Client* client, const SubmittedReplay& submitted) {
  NSA_RETURN_IF_ERROR(DeleteReplay(client, submitted.job));
  if (!submitted.own_folder) {
    session.Note(
        absl::StrCat("the replay's records were deleted; its folder stays, because --set "
                     "named it: ",
                     submitted.folder));
    return absl::OkStatus();
  }
  const absl::Status removed = RemoveOutDir(submitted.folder);
  session.Note(removed.ok() ? "the replay was deleted, with its folder"
                            : absl::StrCat("the replay's records were deleted; its folder stays: ",
                                           std::string(removed.message())));
  return absl::OkStatus();
}

// Says where the replay is, which is kept because it differs, was not compared or is wanted.
void NoteWhatStays(Session& session, const Replay& replay, const SubmittedReplay& submitted,
                   bool compared) {
  const bool ended = HasEnded(replay.replay.state());
  const std::string& id = submitted.job.id();
  session.Note(absl::StrFormat(
      "the replay %s as %s, with the folder %s, which `nsactl delete` leaves there\nNext:\n"
      "  nsactl %s %s\n  nsactl delete %s",
      ended ? "stays" : "goes on", Title(submitted.job), submitted.folder,
      compared ? absl::StrCat("bisect ", replay.original.id())
      : ended  ? "describe"
               : "stop",
      id, id));
}

absl::StatusOr<ExitCode> RunReplay(Session& session, const ReplayFlags& flags) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  Replay replay;
  NSA_ASSIGN_OR_RETURN(replay.original,
                       client->GetJob(flags.job, v1::JOB_USE_UNSPECIFIED, {.raw = true}));
  NSA_ASSIGN_OR_RETURN(const RankLogs all, ReadRankLogs(client, replay.original.id()));
  NSA_ASSIGN_OR_RETURN(replay.step, LastStep(all, flags));
  NSA_ASSIGN_OR_RETURN(const v1::CheckpointInfo start, FindStart(client, flags, replay.step));
  replay.checkpoint_step = start.step();
  NSA_RETURN_IF_ERROR(CheckRanks(all, start.step(), replay.step));
  const RankLogs original = RanksOfStep(all, replay.step);
  replay.ranks = original.size();
  NSA_ASSIGN_OR_RETURN(const SubmittedReplay submitted,
                       Submit(session, replay.original, start, flags, replay.step,
                              static_cast<int32_t>(replay.ranks)));
  // Ctrl-C ends the command between two calls too, so that it says what stays.
  const Interrupt::Scope scope(&session.interrupt(), [] {});
  replay.replay = submitted.job;
  const absl::StatusOr<bool> equal = WaitAndCompare(session, client, submitted, original, &replay);
  absl::Status status = equal.status();
  if (equal.ok() && *equal && !flags.keep) {
    status = RemoveReplay(session, client, submitted);
    if (status.ok()) return ExitCode::kOk;
  }
  NoteWhatStays(session, replay, submitted, equal.ok());
  NSA_RETURN_IF_ERROR(status);
  return *equal ? ExitCode::kOk : ExitCode::kFailed;
}

}  // namespace

void AddReplay(Cli* cli) {
  const auto flags = std::make_shared<ReplayFlags>();
  Options options = cli->Add(
      {.name = "replay",
       .what = "Repeat steps of a job and say whether they give the same bits",
       .group = "Records",
       .more =
           "Submits the job again from its newest checkpoint before step N, in an out_dir beside "
           "JOB's, stops it after step N, and\ncompares loss, gradient norm and the hashes of all "
           "parameters of every rank with those of JOB. On the same kind of\nmachine they must "
           "have "
           "the same bits; a difference names the step and, by the hashes, the rank, and convicts "
           "a GPU or\nmemory that is faulty. The replay has JOB's settings and priority and waits "
           "for free slots as any job. Where all is\nequal it is deleted, with its folder if that "
           "is on this machine; otherwise the command says where it is. The\nexit code is 0 if all "
           "is equal, 1 if the runs differ, 6 if there was nothing to compare.",
       .examples = "nsactl replay demo --step 4200\n"
                   "nsactl replay demo --step 4200 --from 3000 --set priority=10\n"
                   "nsactl replay demo -o json | jq .first",
       .run = [flags](Session& session) { return RunReplay(session, *flags); }});
  options.Argument("JOB", &flags->job, "Job id or name");
  options.Number("--step", &flags->step, {.least = 1},
                 "The last step to repeat (default: the last one with a hash of the parameters)");
  options.Number("--from", &flags->from, {.least = 0},
                 "Step of the checkpoint to begin with (default: the newest before --step); 0: the "
                 "job's beginning");
  options.Texts("--set", "FIELD=VALUE", &flags->sets,
                "Change a field of the replay, e.g. its priority; may be repeated");
  options.Flag("--keep", &flags->keep, "Keep the replay although all is equal");
}

}  // namespace nsa::client
