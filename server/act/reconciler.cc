#include "server/act/reconciler.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/base/thread_name.h"
#include "common/estimate/state_title.h"
#include "server/act/launch_check.h"
#include "server/act/queue/hold_jobs.h"
#include "server/act/sweep/advance.h"
#include "server/decide/allocation/allocation.h"
#include "server/decide/job_event.h"
#include "server/decide/machine_view.h"
#include "spdlog/spdlog.h"

namespace nsa::server {
namespace {

constexpr absl::Duration kTickEvery = absl::Milliseconds(200);
// The shortest time between two ticks, however often the loop is woken: a tick over ten thousand
// queued jobs takes milliseconds.
constexpr absl::Duration kShortestRest = absl::Milliseconds(20);
// Without a tick for this long, the process was stopped, its machine was frozen or a disk hung.
constexpr absl::Duration kStandstill = absl::Seconds(2);

double Jitter() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return std::uniform_real_distribution<double>(0, 1)(random);
}

// What became of the stacks that were to be saved.
v1::JobEvent SavedEvent(const std::string& why, const absl::StatusOr<StackStore::Saved>& saved) {
  if (!saved.ok()) {
    return EventOf(Reason::kStacksNotSaved,
                   absl::StrCat(why, "; stacks not saved: ", saved.status().message()),
                   v1::SEVERITY_WARNING);
  }
  return EventOf(Reason::kStacksSaved,
                 absl::StrCat(why, "; stacks saved as ", saved->id, " in ", saved->file.string()),
                 v1::SEVERITY_WARNING);
}

// Aborted is not an error: the job has changed since the action was decided, and the next tick sees
// its new state.
void LogUnlessAborted(const JobPtr& job, const absl::Status& status) {
  if (status.ok() || absl::IsAborted(status)) return;
  spdlog::error("job {}: {}", job->job().id(), std::string(status.message()));
}

}  // namespace

Reconciler::Reconciler(Parts parts)
    : parts_(std::move(parts)),
      queue_({.store = parts_.store,
              .fleet = parts_.fleet,
              .board = parts_.board,
              .memory = memory_,
              .clock = parts_.clock,
              .scheduling = parts_.scheduling,
              .changed = parts_.changed}),
      clock_follower_(parts_.store, parts_.nodes, parts_.clock, parts_.boot_id) {}

Reconciler::~Reconciler() { Stop(); }

void Reconciler::Start() {
  thread_ = std::thread([this] { Loop(); });
}

void Reconciler::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    woken_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Reconciler::Wake() {
  MutexLock lock(&mutex_);
  wake_ = true;
  woken_.SignalAll();
}

void Reconciler::Loop() {
  NameThread("reconciler");
  while (true) {
    Tick();
    MutexLock lock(&mutex_);
    const absl::Duration ended = parts_.clock.Monotonic();
    while (!stopping_) {
      const absl::Duration rested = parts_.clock.Monotonic() - ended;
      const absl::Duration wanted = wake_ ? kShortestRest : kTickEvery;
      if (rested >= wanted) break;
      woken_.WaitFor(&mutex_, wanted - rested);
    }
    if (stopping_) return;
    wake_ = false;
  }
}

void Reconciler::Tick() {
  NoteStandstill();
  clock_follower_.Look();
  const std::vector<JobPtr> active = parts_.store.Active();
  Forget(active);
  cordons_ = parts_.nodes.All();
  for (const JobPtr& job : active) Act(job, Next(FactsOf(*job)));
  const std::vector<NodeView> nodes = parts_.fleet.Nodes();
  NoteGpuFaults(active, nodes);
  AdvanceSweeps(parts_.store, parts_.clock.Wall());
  KeepHolds(parts_.store, parts_.store.Active(), clock_follower_.Now());
  if (queue_.Run(parts_.store.Active(), nodes, cordons_)) Wake();
  parts_.dumps.Expire();
  parts_.profiles.Expire();
  ++ticks_;
  if (parts_.after_tick) parts_.after_tick();
}

// While this process stood still it received no heartbeats, and the first tick afterwards may come
// before the first heartbeat. So this time counts neither as silence of a machine nor towards the
// stop grace of a gang.
void Reconciler::NoteStandstill() {
  const absl::Duration now = parts_.clock.Monotonic();
  const absl::Duration gap = now - std::exchange(last_tick_, now);
  if (ticks_ == 0 || gap < kStandstill) return;
  spdlog::warn(
      "no tick for {:.1f} s (stopped process, frozen machine or hung disk?); this time does "
      "not count as silence of any machine",
      absl::ToDoubleSeconds(gap));
  parts_.fleet.ForgiveSilence();
  memory_.ForgiveStandstill(gap);
}

void Reconciler::Forget(const std::vector<JobPtr>& active) {
  std::set<std::string> ids;
  for (const JobPtr& job : active) ids.insert(job->job().id());
  parts_.fleet.Prune(active);
  memory_.Prune(ids);
}

// A job keeps a GPU that is taken out while it runs: whether its results can be trusted is for its
// owner to decide.
void Reconciler::NoteGpuFaults(const std::vector<JobPtr>& active,
                               const std::vector<NodeView>& nodes) {
  std::map<std::string, std::string> faulty;
  for (const NodeView& node : nodes) faulty.merge(FaultyGpus(node.info));
  if (faulty.empty()) return;
  for (const JobPtr& job : active) {
    for (const std::string& text : RanksOnFaultyGpus(*job, faulty)) {
      if (!memory_.NoteGpuFault(job->job().id(), text)) continue;
      AddEvent(job, EventOf(Reason::kGpuFault, text, v1::SEVERITY_ERROR));
    }
  }
}

JobFacts Reconciler::FactsOf(const v1::StoredJob& job) {
  const absl::Duration now = parts_.clock.Monotonic();
  // The situation at the first tick was decided before this process started, and agents may have
  // received it then. So heartbeats count from the start of the process.
  const JobMemory::Entry memory = memory_.Observe(job, ticks_ == 0 ? parts_.fleet.started() : now);
  JobFacts facts = {.job = job,
                    .ranks = parts_.fleet.Ranks(job, memory.told),
                    .now = now,
                    .wall_time = clock_follower_.Now(),
                    .jitter = Jitter(),
                    .told = memory.told,
                    .checking = memory.checking,
                    .hang = memory.hang,
                    .last_checkpoint = memory.last_checkpoint,
                    .refusals = memory.refusals,
                    .leave = LeaveOf(job, cordons_, clock_follower_.Now()),
                    .gives_way_to = PreemptorOf(job)};
  if (HasGang(job.job().state())) AddJournals(&facts);
  LoseMachines(job.job(), &facts.ranks);
  return facts;
}

// The job that this one gives way to, for its owner.
std::string Reconciler::PreemptorOf(const v1::StoredJob& job) const {
  if (job.preempted_by().empty()) return "";
  const auto found = parts_.store.Find(job.preempted_by());
  if (!found.ok()) return "a job that was deleted";
  if ((*found)->job().owner() != job.job().owner()) return "a job of another owner";
  return absl::StrCat("job ", (*found)->job().name());
}

// Adds what the stored records say: last records, the step at which the generation began, and how
// long checkpoints take.
void Reconciler::AddJournals(JobFacts* facts) {
  const v1::Job& job = facts->job.job();
  for (RankView& rank : facts->ranks) {
    const auto journal = parts_.store.Journal(job.id(), job.generation(), rank.rank);
    if (!journal.ok()) continue;
    rank.started = journal->next_sequence > 1;
    rank.first_step = journal->first_step;
    facts->last_checkpoint =
        std::max(facts->last_checkpoint, absl::Seconds(journal->last_checkpoint_seconds));
    if (!journal->finished.has_value()) continue;
    rank.finished = journal->finished;
    rank.ended_unix_nanos = journal->finished_unix_nanos;
  }
  memory_.NoteCheckpoint(job.id(), facts->last_checkpoint);
}

void Reconciler::Act(const JobPtr& job, const Action& action) {
  std::visit([&](const auto& what) { Do(job, what); }, action);
}

// If the job has changed since it was read (a stop, a preflight that ended), nothing is done, and
// the next tick sees its new state.
void Reconciler::Do(const JobPtr& job, const action::Move& move) {
  const auto change = [&](v1::StoredJob* stored,
                          std::vector<v1::JobEvent>* events) -> absl::Status {
    if (stored->job().state() != job->job().state() ||
        stored->job().generation() != job->job().generation() ||
        stored->queued_unix_nanos() != job->queued_unix_nanos()) {
      return absl::AbortedError("the job has moved on");
    }
    if (move.trigger == Trigger::kStopNowAsked) {
      stored->mutable_job()->mutable_stop()->set_mode(v1::STOP_MODE_NOW);
    }
    return Apply(move.trigger, move.cause, parts_.clock.Wall(), stored, events);
  };
  const auto moved = parts_.store.Update(job->job().id(), change);
  if (!moved.ok()) return LogUnlessAborted(job, moved.status());
  const std::string before = StateTitle(job->job());
  const std::string now = StateTitle((*moved)->job());
  spdlog::info("job {}: {}{} ({}: {})", job->job().id(), before == now ? "" : before + " -> ", now,
               (*moved)->job().reason(), move.cause.text);
}

// Preflight reads files and may take seconds, so it runs on the executor.
void Reconciler::Do(const JobPtr& job, const action::CheckLaunch& /*check*/) {
  memory_.SetChecking(job->job().id(), true);
  const auto check_launch = [this, job] {
    const auto stopping = [this] {
      const MutexLock lock(&mutex_);
      return stopping_;
    };
    const WorkBudget work(parts_.clock, kLaunchWork, stopping);
    const LaunchCheck check = CheckLaunch(*job, parts_.fleet, parts_.paths, work);
    if (stopping()) return;  // the check may have ended early; the next coordinator makes it again
    const JobFacts facts = {.job = *job,
                            .now = parts_.clock.Monotonic(),
                            .wall_time = parts_.clock.Wall(),
                            .jitter = Jitter(),
                            .refusals = memory_.RefusalsOf(job->job()),
                            .leave = LeaveOf(*job, parts_.nodes.All(), parts_.clock.Wall())};
    Act(job, AfterCheck(facts, check));
    memory_.SetChecking(job->job().id(), false);
    Wake();
  };
  // Jobs of one owner whose files are slow leave a thread for those of others.
  parts_.executor.Run(check_launch, job->job().owner());
}

void Reconciler::Do(const JobPtr& job, const action::DumpStacks& dump) {
  memory_.Suspect(job->job().id(), parts_.clock.Monotonic());
  AddEvent(job, EventOf(Reason::kHangSuspected,
                        absl::StrCat(dump.why, "; saving the stacks of all ranks"),
                        v1::SEVERITY_WARNING));
  SaveStacks(job, dump.why);
}

// After a restart of the coordinator only the file says that this standstill has been noticed.
void Reconciler::Do(const JobPtr& job, const action::SaveStacks& save) {
  const std::string& id = job->job().id();
  memory_.NoteSaved(id, parts_.clock.Monotonic());
  const std::vector<v1::SavedStacks> before = parts_.stacks.List(id);
  const absl::Time began = parts_.clock.Wall() - save.since_progress;
  if (!before.empty() && before.back().generation() == job->job().generation() &&
      absl::FromUnixNanos(before.back().unix_nanos()) >= began) {
    return;
  }
  SaveStacks(job, save.why);
}

// The dumps arrive later and on another thread; the event then names the file.
void Reconciler::SaveStacks(const JobPtr& job, const std::string& why) {
  parts_.dumps.Request(
      job->job(), {job->placements().begin(), job->placements().end()},
      kDumpGrace - absl::Seconds(1), [this, job, why](const std::vector<v1::StackDump>& dumps) {
        const auto saved = parts_.stacks.Save(job->job().id(), job->job().generation(), why, dumps);
        AddEvent(job, SavedEvent(why, saved));
      });
}

void Reconciler::Do(const JobPtr& job, const action::EndSuspicion& /*end*/) {
  memory_.EndSuspicion(job->job().id());
  AddEvent(job, EventOf(Reason::kHangOver, "every rank makes progress again", v1::SEVERITY_INFO));
}

void Reconciler::Do(const JobPtr& job, const action::Restart& restart) {
  const auto change = [&](v1::StoredJob* stored, std::vector<v1::JobEvent>* events) {
    return ApplyRestart(restart.failure, restart.decision, parts_.clock.Wall(), stored, events);
  };
  const auto updated = parts_.store.Update(job->job().id(), change);
  if (!updated.ok()) return LogUnlessAborted(job, updated.status());
  memory_.NoteFailure(job->job(), restart.failure, restart.decision.delay,
                      parts_.clock.Monotonic());
}

void Reconciler::Do(const JobPtr& job, const action::PostponeStart& postpone) {
  // First, so that the job is not placed before its next start is due.
  memory_.NoteFailure(job->job(), postpone.refusal, postpone.delay, parts_.clock.Monotonic());
  Do(job, action::Move{Trigger::kStartPostponed,
                       {.text = postpone.refusal.text,
                        .severity = v1::SEVERITY_WARNING,
                        .next_start = parts_.clock.Wall() + postpone.delay}});
}

void Reconciler::AddEvent(const JobPtr& job, const v1::JobEvent& event) {
  const auto add = [&](v1::StoredJob*, std::vector<v1::JobEvent>* events) {
    events->push_back(event);
    return absl::OkStatus();
  };
  LogUnlessAborted(job, parts_.store.Update(job->job().id(), add).status());
}

}  // namespace nsa::server
