#include "client/connect/canary.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/connect/local/out_dir.h"
#include "client/connect/resend.h"
#include "client/show/human.h"
#include "client/show/job_text.h"
#include "common/base/count.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/estimate/state_title.h"
#include "common/job/load.h"

namespace nsa::client {
namespace {

constexpr absl::Duration kCanaryLook =
    absl::Milliseconds(200);  // between looks at a job that stops

// Collects the records of rank 0.
struct Seen {
  v1::WorkerStarted started;
  std::vector<v1::StepRecord> steps;

  void Add(const v1::WorkerRecord& record) {
    if (record.has_started()) started = record.started();
    if (record.has_step()) steps.push_back(record.step());
  }
};

CanaryResult Measure(const Seen& seen) {
  CanaryResult result{.steps = static_cast<int64_t>(seen.steps.size()),
                      .device = seen.started.device()};
  double tokens = 0, seconds = 0;
  const size_t first = seen.steps.size() / 2;  // the first half warms up
  for (size_t i = 0; i < seen.steps.size(); ++i) {
    const v1::StepRecord& step = seen.steps[i];
    result.memory_bytes = std::max(result.memory_bytes, step.memory_allocated_bytes());
    if (i < first) continue;
    tokens += static_cast<double>(step.tokens());
    seconds += step.times().step_seconds();
  }
  if (seen.steps.empty() || seconds <= 0) return result;
  result.tokens_per_second = tokens / seconds;
  result.step_seconds = seconds / static_cast<double>(seen.steps.size() - first);
  result.loss = seen.steps.back().loss();
  return result;
}

absl::StatusOr<v1::Job> SubmitCanary(Session& session, Client* client, const v1::JobSpec& spec) {
  v1::SubmitJobRequest request;
  NSA_ASSIGN_OR_RETURN(*request.mutable_request_id(), NewRequestId());
  *request.mutable_spec() = CanarySpec(spec, request.request_id().substr(0, 8));
  NSA_ASSIGN_OR_RETURN(const v1::SubmitJobResponse response, Resend(session, [&] {
                         return client->Call<v1::SubmitJobResponse>(request);
                       }));
  return response.job();
}

// Reads records until there are enough steps. FailedPrecondition when the job ends before.
absl::Status Watch(Client* client, const v1::Job& canary, int64_t steps, Seen* seen) {
  v1::WatchRecordsRequest request;
  request.set_job(canary.id());
  request.set_follow(true);
  NSA_RETURN_IF_ERROR(client->Stream<v1::WatchRecordsResponse>(
      request, [&](const v1::WatchRecordsResponse& response) {
        seen->Add(response.record());
        return static_cast<int64_t>(seen->steps.size()) < steps;
      }));
  if (static_cast<int64_t>(seen->steps.size()) >= steps) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(const v1::Job ended, client->GetJob(canary.id()));
  return absl::FailedPreconditionError(
      absl::StrCat("canary: ", StateTitle(ended), " after ",
                   Count(static_cast<int64_t>(seen->steps.size()), "step"), " (needs ", steps,
                   "): ", ReasonText(ended), "; the job was not submitted"));
}

// Stops the canary if it runs, waits for its end and deletes its records.
absl::Status Remove(Session& session, Client* client, const v1::Job& canary) {
  v1::StopJobRequest stop;
  stop.set_job(canary.id());
  stop.mutable_stop()->set_mode(v1::STOP_MODE_NOW);
  const absl::Status stopped = client->Call<v1::StopJobResponse>(stop).status();
  if (!stopped.ok() && !absl::IsFailedPrecondition(stopped)) return stopped;  // it has ended
  while (true) {
    NSA_ASSIGN_OR_RETURN(const v1::Job job, client->GetJob(canary.id()));
    if (HasEnded(job)) break;
    if (!session.interrupt().SleepFor(kCanaryLook)) return absl::CancelledError("interrupted");
  }
  v1::DeleteJobRequest request;
  request.set_job(canary.id());
  NSA_ASSIGN_OR_RETURN(*request.mutable_request_id(), NewRequestId());
  return client->Call<v1::DeleteJobResponse>(request).status();
}

}  // namespace

v1::JobSpec CanarySpec(v1::JobSpec spec, const std::string& unique) {
  const std::string ending = "-canary-" + unique;
  spec.set_name(spec.name().substr(0, limits::kJobNameBytes - ending.size()) + ending);
  spec.mutable_train()->set_out_dir(absl::StrCat(spec.train().out_dir(), ending));
  spec.mutable_train()->clear_checkpoint_url();
  spec.mutable_restart()->set_max_restarts(0);
  spec.mutable_restart()->set_resume("never");
  spec.mutable_restart()->clear_init();
  // It runs now, and nobody is to hear of it.
  spec.clear_after();
  spec.clear_not_before();
  spec.clear_alerts();
  return spec;
}

absl::StatusOr<CanaryResult> RunCanary(Session& session, const v1::JobSpec& spec, int64_t steps) {
  NSA_ASSIGN_OR_RETURN(Client * client, session.client());
  v1::JobSpec full = spec;
  ApplyDefaults(&full);
  const int64_t wanted = std::min<int64_t>(steps, full.train().steps());
  NSA_ASSIGN_OR_RETURN(const v1::Job canary, SubmitCanary(session, client, spec));
  session.Note(absl::StrCat("canary ", Title(canary), ": waits for ", Count(wanted, "step")));
  Seen seen;
  const absl::Status watched = Watch(client, canary, wanted, &seen);
  const std::string& folder = canary.spec().train().out_dir();
  if (const absl::Status removed = Remove(session, client, canary); !removed.ok()) {
    session.Note(absl::StrCat(
        "canary ", Title(canary), " was not removed: ", std::string(removed.message()),
        "; end it with `nsactl stop --now ", canary.id(), "`; its folder stays: ", folder));
  } else if (!watched.ok()) {
    session.Note(absl::StrCat("the canary's folder stays, to look at: ", folder));
  } else if (const absl::Status gone = RemoveOutDir(folder); !gone.ok()) {
    session.Note(absl::StrCat("the canary's folder stays: ", std::string(gone.message())));
  }
  NSA_RETURN_IF_ERROR(watched);
  return Measure(seen);
}

std::string CanaryText(const CanaryResult& result, const v1::JobSpec& spec) {
  v1::JobSpec full = spec;
  ApplyDefaults(&full);
  const int64_t steps = full.train().steps();
  return absl::StrFormat(
      "%s on %s: %s tok/s (%.3g s a step), memory %s, loss %s; all %s steps take about %s",
      Count(result.steps, "step"), result.device, HumanCount(result.tokens_per_second),
      result.step_seconds, HumanBytes(result.memory_bytes), HumanLoss(result.loss),
      WithCommas(steps), HumanDuration(static_cast<double>(steps) * result.step_seconds));
}

absl::Status CheckCanary(const CanaryResult& result, const v1::JobSpec& spec) {
  const double floor = spec.guard().min_tokens_per_second();
  if (result.tokens_per_second >= floor) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "guard.min_tokens_per_second: %s (the canary reached %s): the guard would end the job, "
      "which was not submitted; find out why it is slow, or lower the floor",
      Number(floor), Number(std::round(result.tokens_per_second))));
}

}  // namespace nsa::client
