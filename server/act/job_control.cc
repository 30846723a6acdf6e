#include "server/act/job_control.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/count.h"
#include "common/base/job_file.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/base/utc_text.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/estimate/schedule.h"
#include "common/estimate/state_title.h"
#include "common/job/known.h"
#include "common/job/load.h"
#include "common/job/out_dir_number.h"
#include "common/preflight/fork.h"
#include "common/preflight/preflight.h"
#include "server/act/checkpoints.h"
#include "server/act/edit/apply_differences.h"
#include "server/act/edit/request_id.h"
#include "server/act/launch_check.h"
#include "server/act/owner_use.h"
#include "server/act/queue/hold_jobs.h"
#include "server/act/request_error.h"
#include "server/decide/job_event.h"
#include "server/decide/lifecycle.h"
#include "server/decide/progress.h"
#include "server/decide/sweep/halving.h"
#include "server/decide/transition.h"
#include "server/store/random_id.h"
#include "server/watch/veil.h"
#include "spdlog/spdlog.h"

namespace nsa::server {
namespace {

constexpr int64_t kLargestSpec = 1 << 20;
// The answer to a heartbeat brings it to every rank of the machine.
constexpr int64_t kLargestOfMachine = 8 << 20;

absl::Status CheckSizeOf(const v1::JobSpec& spec) {
  const auto bytes = static_cast<int64_t>(spec.ByteSizeLong());
  if (bytes > kLargestSpec) {
    return absl::InvalidArgumentError(
        absl::StrFormat("spec: %d bytes (at most %d); shorten it", bytes, kLargestSpec));
  }
  const int64_t machines = std::max(spec.resources().nodes(), 1);
  const int64_t ranks = (std::max(spec.resources().gpus(), 1) + machines - 1) / machines;
  if (bytes * ranks <= kLargestOfMachine) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("spec: %d bytes for each of %d ranks on a machine (at most %d together); "
                      "shorten it, e.g. by a pattern in data.path, or use fewer ranks",
                      bytes, ranks, kLargestOfMachine));
}

absl::Status CheckRequest(const v1::SubmitJobRequest& request) {
  NSA_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  NSA_RETURN_IF_ERROR(CheckSizeOf(request.spec()));
  // Otherwise fields that this version does not know would silently be ignored.
  const absl::Status known = CheckKnown(request.spec(), "spec");
  return known.ok() ? known : WithReason(known, Reason::kNewerSpec);
}

// `report` refuses its job.
absl::Status RefusedBy(const v1::PreflightReport& report) {
  std::vector<const v1::Finding*> errors;
  for (const v1::Finding& finding : report.findings()) {
    const bool refuses = finding.severity() == v1::SEVERITY_ERROR && finding.waived().empty();
    if (refuses) errors.push_back(&finding);
  }
  absl::Status status = absl::InvalidArgumentError(absl::StrFormat(
      "preflight: %s: %s (%d %s this job); see the findings", errors.at(0)->field(),
      errors[0]->problem(), errors.size(), errors.size() == 1 ? "rule refuses" : "rules refuse"));
  for (const v1::Finding* error : errors) {
    status = WithViolation(std::move(status), error->field(),
                           absl::StrCat(error->rule(), ": ", error->problem(), "; ", error->fix()));
  }
  return WithReason(std::move(status), Reason::kPreflightRefused);
}

// For a job whose paths are not allowed: the report of the rules that open no file, if they refuse
// the job as well, so that one bad path does not hide the other mistakes; else `paths`.
absl::StatusOr<v1::PreflightReport> RefusalWithoutFiles(const v1::JobSpec& spec,
                                                        const absl::Status& paths) {
  v1::PreflightReport report = Preflight(spec, {});
  if (report.accepted()) return WithReason(paths, Reason::kPathNotAllowed);
  return report;
}

// Adds the violated field to the store's refusal of a second job in one out_dir. Other errors are
// returned unchanged.
absl::Status OutDirRefused(const absl::Status& status) {
  if (ReasonOf(status) != Reason::kOutDirInUse) return status;
  return WithViolation(status, "train.out_dir", std::string(status.message()));
}

v1::StoredJob NewJob(const v1::PreflightReport& report, const std::string& id, int64_t now) {
  v1::StoredJob stored;
  v1::Job& job = *stored.mutable_job();
  job.set_id(id);
  job.set_name(report.spec().name());
  *job.mutable_spec() = report.spec();
  job.set_state(v1::Job::STATE_QUEUED);
  job.set_reason(Word(Reason::kSubmitted));
  job.set_submit_unix_nanos(now);
  job.mutable_progress()->set_total_steps(report.spec().train().steps());
  job.mutable_progress()->set_eta_seconds(-1);
  for (const v1::Finding& finding : report.findings()) {
    if (!finding.waived().empty()) {
      (*job.mutable_waivers())[finding.rule()] = finding.waived();
    } else if (finding.severity() == v1::SEVERITY_WARNING) {
      *job.add_warnings() = finding;
    }
  }
  if (const int64_t step = FirstSweepStop(job.spec().sweep()); step > 0) {
    job.mutable_stop()->set_mode(v1::STOP_MODE_AT_STEP);
    job.mutable_stop()->set_at_step(step);
  }
  stored.set_state_unix_nanos(now);
  stored.set_queued_unix_nanos(now);
  return stored;
}

v1::JobEvent SubmittedEvent(const v1::StoredJob& stored) {
  const v1::JobSpec& spec = stored.job().spec();
  return EventOf(Reason::kSubmitted, absl::StrCat(Count(spec.train().steps(), "step"), " on ",
                                                  Count(spec.resources().gpus(), "rank"),
                                                  ", out_dir ", spec.train().out_dir()));
}

absl::Status AlreadyDone(const v1::Job& job) {
  const int64_t steps = job.spec().train().steps();
  return WithReason(
      absl::FailedPreconditionError(absl::StrFormat(
          "train.steps: job %s is finished, all %s done (needs more steps); to train it further: "
          "nsactl resume %s %s",
          job.id(), Count(steps, "step"), job.id(), FlagsToTrainFurther(job.spec().train()))),
      Reason::kNotResumable);
}

// New `steps` of a job that continues from its checkpoint: with no step left to do, the resume
// would end the job as if it had been meant to be that short.
absl::Status CheckStepsLeft(const v1::Job& job, int64_t steps) {
  const int64_t done = job.progress().checkpoint_step();
  if (steps == job.spec().train().steps() || steps > done) return absl::OkStatus();
  return WithReason(absl::FailedPreconditionError(
                        absl::StrFormat("train.steps: %d (the newest checkpoint is of step %d); "
                                        "set more steps than that, or leave them as they are",
                                        steps, done)),
                    Reason::kStepInThePast);
}

Trigger TriggerOf(v1::StopMode mode) {
  if (mode == v1::STOP_MODE_AT_STEP) return Trigger::kStopAtStepAsked;
  return mode == v1::STOP_MODE_NOW ? Trigger::kStopNowAsked : Trigger::kGracefulStopAsked;
}

std::string Describe(const v1::StopRequest& stop) {
  if (stop.mode() == v1::STOP_MODE_AT_STEP) {
    return absl::StrCat("asked to end after step ", stop.at_step());
  }
  return stop.mode() == v1::STOP_MODE_NOW ? "asked to end at once"
                                          : "asked to end after the step in progress";
}

}  // namespace

std::string NewJobId() { return RandomId("j"); }

JobControl::JobControl(JobStore& store, const Fleet& fleet, const NodeStore& nodes,
                       const QueueBoard& board, const PathGuard& paths, const Clock& clock,
                       JobPolicy policy)
    : store_(store),
      fleet_(fleet),
      nodes_(nodes),
      board_(board),
      paths_(paths),
      clock_(clock),
      policy_(std::move(policy)) {}

PreflightContext JobControl::ContextFor(const std::string& only,
                                        const std::function<bool()>& over) const {
  return {.check_files = true,
          .job_id = "",
          .abandoned = over,
          .provisioners = &policy_.provisioners,
          .notices = &policy_.notices,
          .awaited = [this, only](const std::string& job) {
            return FindAwaited(store_, job, only).status();
          }};
}

absl::StatusOr<v1::SubmitJobResponse> JobControl::Submit(const v1::SubmitJobRequest& request,
                                                         const std::function<bool()>& abandoned,
                                                         const Asker& asker) {
  NSA_RETURN_IF_ERROR(CheckRequest(request));
  const std::string fingerprint = Fingerprint(request.spec());
  v1::SubmitJobResponse response;
  if (!request.validate_only()) {
    // Before preflight, which would refuse a repeated submit whose job already uses the out_dir.
    const auto known = store_.FindRequest(request.request_id(), fingerprint);
    if (!known.ok()) return Veiled(known.status(), store_, asker.only());
    if (*known != nullptr) return Known(**known, asker);
  }
  v1::JobSpec spec = request.spec();
  ApplyDefaults(&spec);
  AddDefaultHours(&spec);
  const WorkBudget work(clock_, kRequestWork, abandoned);
  const auto over = [&work] { return work.Over(); };
  const JobFileScope files(paths_.FilesOf(asker.unix_user, over));
  NumberOutDir(&spec);
  // Before preflight, because preflight opens the files.
  if (const absl::Status paths = paths_.CheckSpec(spec); !paths.ok()) {
    NSA_RETURN_IF_ERROR(work.Check());
    NSA_ASSIGN_OR_RETURN(*response.mutable_report(), RefusalWithoutFiles(spec, paths));
    if (request.validate_only()) return response;
    return RefusedBy(response.report());
  }
  absl::StatusOr<std::string> out_dir = paths_.RealOutDir(spec.train().out_dir());
  if (!out_dir.ok()) return WithReason(out_dir.status(), Reason::kPathNotAllowed);
  PreflightContext context = ContextFor(asker.only(), over);
  context.has_unix_user = !asker.unix_user.empty();
  *response.mutable_report() =
      CheckSubmit(std::move(spec), fleet_, nodes_.All(), std::move(context));
  NSA_RETURN_IF_ERROR(work.Check());
  Veil(store_, asker.only(), response.mutable_report());
  if (request.validate_only()) return response;
  if (!response.report().accepted()) {
    // If the request was sent twice, the other one may have been accepted meanwhile, and its worker
    // may already use the out_dir.
    NSA_ASSIGN_OR_RETURN(const JobPtr twin, store_.FindRequest(request.request_id(), fingerprint));
    return twin != nullptr ? Known(*twin, asker) : RefusedBy(response.report());
  }

  v1::StoredJob stored = NewJob(response.report(), NewJobId(), absl::ToUnixNanos(clock_.Wall()));
  stored.set_out_dir_real(*std::move(out_dir));
  stored.mutable_job()->set_owner(asker.name);
  stored.mutable_job()->set_unix_user(asker.unix_user);
  NSA_RETURN_IF_ERROR(HoldForJobs(store_, asker.only(), stored.mutable_job()));
  NSA_RETURN_IF_ERROR(HoldForTime(clock_.Wall(), stored.mutable_job()));
  const auto inserted = Admit(std::move(stored), request.request_id(), fingerprint);
  if (!inserted.ok()) return OutDirRefused(Veiled(inserted.status(), store_, asker.only()));
  if (!inserted->created) return Known(*inserted->job, asker);
  *response.mutable_job() = View(*inserted->job);
  return response;
}

absl::StatusOr<JobStore::Inserted> JobControl::Admit(v1::StoredJob job,
                                                     const std::string& request_id,
                                                     const std::string& fingerprint) {
  const MutexLock lock(&admission_);
  NSA_ASSIGN_OR_RETURN(const JobPtr twin, store_.FindRequest(request_id, fingerprint));
  if (twin == nullptr) NSA_RETURN_IF_ERROR(CheckOwner(job.job().owner(), job.job().spec()));
  v1::JobEvent event = SubmittedEvent(job);
  return store_.Insert(std::move(job), request_id, fingerprint, std::move(event));
}

absl::Status JobControl::CheckOwner(const std::string& owner, const v1::JobSpec& spec) const {
  const v1::QuotaConfig* const quota = policy_.quotas.Of(owner);
  if (quota == nullptr) return absl::OkStatus();
  const absl::Time now = clock_.Wall();
  return CheckQuota(*quota, owner, TakenOf(store_, owner, now), spec, now);
}

void JobControl::AddDefaultHours(v1::JobSpec* spec) const {
  if (policy_.default_hours == 0 || spec->limits().has_hours()) return;
  spec->mutable_limits()->set_hours(policy_.default_hours);
}

void JobControl::NumberOutDir(v1::JobSpec* spec) const {
  if (!HasOutDirNumber(spec->train().out_dir())) return;
  std::set<std::string> of_jobs;
  const JobStore::Jobs jobs = store_.All(std::numeric_limits<size_t>::max());
  for (const auto* some : {&jobs.active, &jobs.ended}) {
    for (const JobPtr& job : *some) of_jobs.insert(job->job().spec().train().out_dir());
  }
  FillOutDir(
      [&](const std::string& out_dir) {
        if (of_jobs.contains(out_dir)) return true;
        // CheckSpec() refuses a folder that may not be looked at.
        return paths_.Check("train.out_dir", out_dir).ok() && JobPathExists(out_dir);
      },
      spec);
}

absl::StatusOr<v1::SubmitJobResponse> JobControl::Known(const v1::StoredJob& job,
                                                        const Asker& asker) const {
  if (asker.own_jobs_only && job.job().owner() != asker.name) {
    return absl::AlreadyExistsError(
        "request_id: in use (that of somebody else's request); choose a new one");
  }
  v1::SubmitJobResponse response;
  *response.mutable_job() = View(job);
  return response;
}

absl::StatusOr<v1::Job> JobControl::Get(const std::string& id_or_name, const Asker& asker,
                                        v1::JobUse use) const {
  NSA_ASSIGN_OR_RETURN(const JobPtr job, store_.Find(id_or_name, asker.only(), use));
  return View(*job);
}

v1::ListUseResponse JobControl::Use(const Asker& asker) const {
  return UseOfOwners(store_, policy_.quotas, asker.only(), clock_.Wall());
}

absl::StatusOr<JobFolder> JobControl::OutDir(const std::string& id_or_name,
                                             const Asker& asker) const {
  NSA_ASSIGN_OR_RETURN(const JobPtr job, store_.Find(id_or_name, asker.only()));
  const std::string& out_dir = job->job().spec().train().out_dir();
  const absl::Status safe = paths_.Check("train.out_dir", CheckpointsDir(out_dir));
  if (!safe.ok()) return WithReason(safe, Reason::kPathNotAllowed);
  return JobFolder{out_dir, paths_.FilesOf(job->job().unix_user())};
}

absl::StatusOr<v1::ListJobsResponse> JobControl::List(const v1::ListJobsRequest& request,
                                                      const Asker& asker) const {
  JobStore::Filter filter{.labels = {request.labels().begin(), request.labels().end()},
                          .owner = asker.only()};
  for (const int state : request.states()) filter.states.push_back(static_cast<State>(state));
  NSA_ASSIGN_OR_RETURN(const JobStore::Page page,
                       store_.List(request.page_size(), request.page_token(), filter));
  v1::ListJobsResponse response;
  for (const JobPtr& job : page.jobs) *response.add_jobs() = View(*job);
  response.set_next_page_token(page.next_page_token);
  return response;
}

int64_t JobControl::FurthestStep(const v1::StoredJob& stored) const {
  // Without ranks the job will continue from its checkpoint, and later steps are repeated.
  const State state = stored.job().state();
  const bool trains = state == v1::Job::STATE_RUNNING || state == v1::Job::STATE_STOPPING;
  const v1::JobProgress& progress = stored.job().progress();
  int64_t step = trains ? progress.step() : progress.checkpoint_step();
  for (const RankView& rank : fleet_.Ranks(stored, fleet_.started())) {
    if (rank.worker.has_value()) step = std::max<int64_t>(step, rank.worker->step());
  }
  return step;
}

absl::Status JobControl::CheckStopStep(const v1::StoredJob& stored,
                                       const v1::StopRequest& stop) const {
  if (stop.mode() != v1::STOP_MODE_AT_STEP) return absl::OkStatus();
  const int64_t done = FurthestStep(stored);
  const int64_t steps = stored.job().spec().train().steps();
  if (stop.at_step() <= done) {
    return WithReason(
        absl::FailedPreconditionError(absl::StrFormat(
            "at_step: %d (step %d is done); choose a later step", stop.at_step(), done)),
        Reason::kStepInThePast);
  }
  if (stop.at_step() > steps) {
    return WithReason(absl::FailedPreconditionError(absl::StrFormat(
                          "at_step: %d (the job ends at step %d); choose an earlier step",
                          stop.at_step(), steps)),
                      Reason::kStepBeyondTheEnd);
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Job> JobControl::Stop(const v1::StopJobRequest& request, const Asker& asker) {
  const v1::StopRequest& stop = request.stop();
  NSA_RETURN_IF_ERROR(CheckKnownValues(stop, "stop"));
  if (stop.mode() == v1::STOP_MODE_UNSPECIFIED) {
    return absl::InvalidArgumentError("stop.mode: not set; choose at-step, graceful or now");
  }
  NSA_ASSIGN_OR_RETURN(JobPtr job, store_.Find(request.job(), asker.only(), v1::JOB_USE_ACTIVE));
  const auto change = [&](v1::StoredJob* stored,
                          std::vector<v1::JobEvent>* events) -> absl::Status {
    if (IsTerminal(stored->job().state())) {
      return WithReason(absl::FailedPreconditionError(
                            absl::StrCat("state: job ", stored->job().id(), " is ",
                                         StateTitle(stored->job()), " already; nothing to stop")),
                        Reason::kJobHasEnded);
    }
    NSA_ASSIGN_OR_RETURN(const bool stronger, Escalates(stored->job().stop(), stop));
    // A repeated request is accepted: its sender may not have received the first answer.
    if (!stronger) return absl::OkStatus();
    NSA_RETURN_IF_ERROR(CheckStopStep(*stored, stop));
    NSA_RETURN_IF_ERROR(
        Apply(TriggerOf(stop.mode()), {.text = Describe(stop)}, clock_.Wall(), stored, events));
    *stored->mutable_job()->mutable_stop() = stop;
    return absl::OkStatus();
  };
  NSA_ASSIGN_OR_RETURN(job, store_.Update(job->job().id(), change));
  return View(*job);
}

absl::StatusOr<v1::JobSpec> JobControl::SpecToResume(const v1::StoredJob& job,
                                                     const v1::ResumeJobRequest& request,
                                                     const Asker& asker,
                                                     const std::function<bool()>& abandoned) const {
  if (!request.has_spec()) return job.job().spec();
  v1::SubmitJobRequest as_submit;
  *as_submit.mutable_spec() = request.spec();
  NSA_RETURN_IF_ERROR(CheckRequest(as_submit));
  v1::JobSpec spec = request.spec();
  // A file that says nothing of the sweep does not take the job out of it.
  spec.clear_sweep();
  if (job.job().spec().has_sweep()) *spec.mutable_sweep() = job.job().spec().sweep();
  // Nor does one that was read before somebody set a label take that away.
  for (const auto& [key, value] : job.job().spec().labels()) {
    spec.mutable_labels()->try_emplace(key, value);
  }
  ApplyDefaults(&spec);
  AddDefaultHours(&spec);
  if (const std::string fixed = FixedDifferences(job.job().spec(), spec); !fixed.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("spec: a resumed job keeps ", fixed,
                     " (train.steps, intervals, limits and waivers may change); submit a new job"));
  }
  const WorkBudget work(clock_, kRequestWork, abandoned);
  const auto over = [&work] { return work.Over(); };
  const JobFileScope files(paths_.FilesOf(job.job().unix_user(), over));
  if (const absl::Status paths = paths_.CheckSpec(spec); !paths.ok()) {
    NSA_RETURN_IF_ERROR(work.Check());
    return WithReason(paths, Reason::kPathNotAllowed);
  }
  // Its machine is checked when it is launched.
  PreflightContext context = ContextFor(asker.only(), over);
  context.job_id = job.job().id();
  context.restarted = job.job().generation() > 0;
  const bool waits_for_others = !std::ranges::equal(spec.after(), job.job().spec().after());
  if (!waits_for_others) context.awaited = nullptr;  // they were found when they were named
  const v1::PreflightReport report = Preflight(spec, context);
  NSA_RETURN_IF_ERROR(work.Check());
  if (!report.accepted()) return RefusedBy(report);
  return spec;
}

absl::StatusOr<v1::Job> JobControl::HeldAnew(const v1::StoredJob& job, const v1::JobSpec& spec,
                                             const Asker& asker) const {
  v1::Job held;
  held.set_id(job.job().id());
  *held.mutable_spec() = spec;
  *held.mutable_after() = job.job().after();
  held.set_not_before_unix_nanos(job.job().not_before_unix_nanos());
  const v1::JobSpec& before = job.job().spec();
  if (!std::ranges::equal(spec.after(), before.after())) {
    NSA_RETURN_IF_ERROR(HoldForJobs(store_, asker.only(), &held));
  }
  if (spec.not_before() != before.not_before()) {
    NSA_RETURN_IF_ERROR(HoldForTime(clock_.Wall(), &held));
  }
  return held;
}

absl::StatusOr<v1::Job> JobControl::Resume(const v1::ResumeJobRequest& request, const Asker& asker,
                                           const std::function<bool()>& abandoned) {
  NSA_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  const std::string fingerprint =
      absl::StrCat("resume ", request.job(), request.has_spec() ? Fingerprint(request.spec()) : "");
  // Before the job is looked up by its name: by now that may mean another one.
  NSA_ASSIGN_OR_RETURN(const JobPtr known, store_.FindRequest(request.request_id(), fingerprint));
  NSA_ASSIGN_OR_RETURN(
      const JobPtr job,
      store_.Find(known == nullptr ? request.job() : known->job().id(), asker.only(),
                  request.has_spec() ? v1::JOB_USE_ENDED : v1::JOB_USE_RESUMABLE));
  if (known != nullptr) return View(*job);
  NSA_ASSIGN_OR_RETURN(const v1::JobSpec spec, SpecToResume(*job, request, asker, abandoned));
  NSA_ASSIGN_OR_RETURN(const v1::Job held, HeldAnew(*job, spec, asker));
  const MutexLock lock(&admission_);
  const absl::Status has_room = CheckOwner(job->job().owner(), spec);
  const auto change = [&](v1::StoredJob* stored,
                          std::vector<v1::JobEvent>* events) -> absl::Status {
    const State state = stored->job().state();
    if (state == v1::Job::STATE_SUCCEEDED &&
        spec.train().steps() <= stored->job().spec().train().steps()) {
      return AlreadyDone(stored->job());
    }
    if (!FindTransition(state, Trigger::kResumed).ok()) {
      return WithReason(absl::FailedPreconditionError(absl::StrCat(
                            "state: job ", stored->job().id(), " is ", StateTitle(stored->job()),
                            " (failed or stopped); only a job that ended early can be resumed")),
                        Reason::kNotResumable);
    }
    NSA_RETURN_IF_ERROR(CheckStepsLeft(stored->job(), spec.train().steps()));
    NSA_RETURN_IF_ERROR(has_room);
    const absl::Status moved =
        Requeue({.text = "asked to continue"}, clock_.Wall(), stored, events);
    if (!moved.ok()) return WithReason(moved, Reason::kNotResumable);
    v1::Job& fresh = *stored->mutable_job();
    NSA_RETURN_IF_ERROR(ApplyDifferences(job->job().spec(), spec, fresh.mutable_spec()));
    *fresh.mutable_after() = held.after();
    fresh.set_not_before_unix_nanos(held.not_before_unix_nanos());
    stored->set_earlier_run_seconds(stored->earlier_run_seconds() + stored->run_seconds());
    stored->clear_run_seconds();
    fresh.mutable_progress()->set_total_steps(fresh.spec().train().steps());
    return absl::OkStatus();
  };
  const auto resumed = store_.Update(job->job().id(), change,
                                     {.id = request.request_id(), .fingerprint = fingerprint});
  if (!resumed.ok()) return OutDirRefused(Veiled(resumed.status(), store_, asker.only()));
  return View(**resumed);
}

absl::StatusOr<v1::DeleteJobResponse> JobControl::Delete(const v1::DeleteJobRequest& request,
                                                         const std::string& from,
                                                         const Asker& asker) {
  NSA_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  // A request that is repeated finds its job gone; the store recognises it by its id.
  const auto deleted =
      store_.Delete(request.job(), DeletedBy::kUser, request.request_id(), asker.only());
  if (absl::IsFailedPrecondition(deleted.status())) {
    return WithReason(deleted.status(), Reason::kJobHasNotEnded);
  }
  NSA_RETURN_IF_ERROR(Veiled(deleted.status(), store_, asker.only()));
  if (deleted->job != nullptr) {
    ReleaseFolder(deleted->job->job());
    spdlog::info("job {}: deleted (by {}): {}", deleted->job_id, from,
                 DeletionText(deleted->job->job()));
  }
  v1::DeleteJobResponse response;
  response.set_job_id(deleted->job_id);
  return response;
}

void ReleaseFolder(const v1::Job& job) {
  const std::string& out_dir = job.spec().train().out_dir();
  const absl::Status released = ReleaseOutDir(out_dir, job.id());
  if (released.ok()) return;
  spdlog::warn("job {}: {} still belongs to it: {}; remove its owner.json to use the folder again",
               job.id(), absl::CHexEscape(out_dir), std::string(released.message()));
}

std::string DeletionText(const v1::Job& job) {
  const v1::TrainSpec& train = job.spec().train();
  return absl::StrFormat("name %s, %s at step %d of %d, submitted %s, ended %s; %s stays",
                         absl::CHexEscape(job.name()), StateTitle(job), job.progress().step(),
                         train.steps(), UtcText(job.submit_unix_nanos()),
                         UtcText(job.end_unix_nanos()), absl::CHexEscape(train.out_dir()));
}

}  // namespace nsa::server
