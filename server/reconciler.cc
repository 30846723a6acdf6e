#include "server/reconciler.h"

#include <algorithm>
#include <fstream>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/count.h"
#include "common/load.h"
#include "common/status.h"
#include "common/thread_name.h"
#include "server/launch_check.h"
#include "server/scheduler.h"
#include "spdlog/spdlog.h"

namespace nsa::server {
namespace {

constexpr absl::Duration kLookEvery = absl::Milliseconds(200);
// However often it is woken: a look at ten thousand queued jobs takes milliseconds.
constexpr absl::Duration kRest = absl::Milliseconds(20);
// No look for so long: the process was stopped, its machine frozen, or a disk hung.
constexpr absl::Duration kStandstill = absl::Seconds(2);
// A driver that hangs measures nothing any more; then the last numbers have to do.
constexpr absl::Duration kMeasurePatience = absl::Seconds(30);
constexpr char kHang[] = "HANG";
constexpr char kDataExhausted[] = "DATA_EXHAUSTED";

double Jitter() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return std::uniform_real_distribution<double>(0, 1)(random);
}

v1::JobEvent Incident(const std::string& reason, const std::string& text, v1::Severity severity,
                      int32_t rank = -1) {
  v1::JobEvent event;
  event.set_reason(reason);
  event.set_text(text);
  event.set_severity(severity);
  event.set_rank(rank);
  return event;
}

// The cause as it was noted when the gang began to end: all that is left when nobody died by
// itself.
Failure NotedCause(const v1::Job& job) {
  return {.reason = job.reason(),
          .text = job.message(),
          .infrastructure = job.reason() == "NODE_LOST" || job.reason() == "WORKER_VANISHED" ||
                            job.reason() == "PREEMPTED"};
}

// A gang that was asked to end may finish its step and its checkpoint as long as it gets on.
bool StopIsOverdue(const v1::StoredJob& job, const std::vector<RankView>& ranks,
                   absl::Duration asked) {
  const absl::Duration grace = absl::Seconds(job.job().spec().restart().stop_grace_seconds());
  const auto stands_still = [&](const RankView& rank) {
    return rank.worker.has_value() && absl::Seconds(rank.worker->seconds_since_progress()) >= grace;
  };
  return asked >= 10 * grace || (asked >= grace && std::ranges::any_of(ranks, stands_still));
}

}  // namespace

Reconciler::Reconciler(Parts parts) : parts_(std::move(parts)) {}

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
    const absl::Duration looked = parts_.clock.Monotonic();
    while (!stopping_) {
      const absl::Duration rested = parts_.clock.Monotonic() - looked;
      const absl::Duration wanted = wake_ ? kRest : kLookEvery;
      if (rested >= wanted) break;
      woken_.WaitFor(&mutex_, wanted - rested);
    }
    if (stopping_) return;
    wake_ = false;
  }
}

void Reconciler::Tick() {
  NoteStandstill();
  const std::vector<JobPtr> active = parts_.store.Active();
  Forget(active);
  for (const JobPtr& job : active) Advance(job);
  PlaceQueued(parts_.store.Active());
  parts_.dumps.Expire();
  ++looks_;
  if (parts_.looked) parts_.looked();
}

// While this process stood still nobody could be heard, and the first look afterwards may come
// before the first heartbeat. Such time is neither a machine's silence nor a stopping gang's grace.
void Reconciler::NoteStandstill() {
  const absl::Duration now = parts_.clock.Monotonic();
  const absl::Duration gap = now - std::exchange(looked_, now);
  if (looks_ == 0 || gap < kStandstill) return;
  spdlog::warn(
      "no look at the jobs for {:.1f} s (a stopped process, a frozen machine or a disk?); "
      "that time counts against no machine",
      absl::ToDoubleSeconds(gap));
  parts_.fleet.ForgiveSilence();
  for (auto& [id, memory] : memory_) {
    if (memory.state == v1::Job::STATE_STOPPING) memory.since += gap;
  }
}

Reconciler::Memory& Reconciler::Remember(const v1::StoredJob& job) {
  Memory& memory = memory_[job.job().id()];
  // A refusal changes nothing of the job but the wait that begins with it.
  const bool waits = job.job().state() == v1::Job::STATE_RESTARTING;
  const int32_t refusals = waits ? RefusalsOf(job.job()).count : 0;
  if (memory.state != job.job().state() || memory.generation != job.job().generation() ||
      memory.ending != job.gang_ending() || memory.decided != job.restart_decided() ||
      memory.restarts != job.job().restarts() || memory.refusals != refusals) {
    memory.state = job.job().state();
    memory.generation = job.job().generation();
    memory.ending = job.gang_ending();
    memory.decided = job.restart_decided();
    memory.restarts = job.job().restarts();
    memory.refusals = refusals;
    // What an earlier life of the coordinator decided, agents may have been told by it.
    memory.since = looks_ == 0 ? parts_.fleet.started() : parts_.clock.Monotonic();
    memory.hang = {};
  }
  MutexLock lock(&mutex_);
  if (checked_.erase(job.job().id()) > 0) memory.checking = false;
  return memory;
}

void Reconciler::Forget(const std::vector<JobPtr>& active) {
  std::set<std::string> ids;
  for (const JobPtr& job : active) ids.insert(job->job().id());
  parts_.fleet.Prune(ids);
  const auto gone = [&](const auto& entry) { return !ids.contains(entry.first); };
  std::erase_if(memory_, gone);
  MutexLock lock(&mutex_);
  std::erase_if(refusals_, gone);
}

void Reconciler::Advance(const JobPtr& job) {
  Memory& memory = Remember(*job);
  switch (job->job().state()) {
    case v1::Job::STATE_PREFLIGHT:
      return AdvancePreflight(job, &memory);
    case v1::Job::STATE_STARTING:
    case v1::Job::STATE_RUNNING:
      return AdvanceGang(job, &memory);
    case v1::Job::STATE_RESTARTING:
      return AdvanceRestarting(job, &memory);
    case v1::Job::STATE_STOPPING:
      return AdvanceStopping(job, &memory);
    default:
      return;
  }
}

std::vector<RankView> Reconciler::RanksOf(const v1::StoredJob& job, const Memory& memory) const {
  std::vector<RankView> ranks = parts_.fleet.Ranks(job, memory.since);
  for (RankView& rank : ranks) {
    const auto journal = parts_.store.Journal(job.job().id(), job.job().generation(), rank.rank);
    if (!journal.ok() || !journal->finished.has_value()) continue;
    rank.finished = journal->finished;
    rank.ended_unix_nanos = journal->finished_unix_nanos;
  }
  return ranks;
}

bool Reconciler::NodesAre(const v1::StoredJob& job, RankView::Node state, bool all) const {
  const std::vector<RankView> ranks = parts_.fleet.Ranks(job, absl::ZeroDuration());
  const auto is = [&](const RankView& rank) { return rank.node == state; };
  return all ? std::ranges::all_of(ranks, is) : std::ranges::any_of(ranks, is);
}

void Reconciler::AdvancePreflight(const JobPtr& job, Memory* memory) {
  if (memory->checking) return;
  const std::vector<RankView> ranks = parts_.fleet.Ranks(*job, memory->since);
  if (NodesAre(*job, RankView::Node::kLost, /*all=*/false)) {
    return Move(job, Happening::kNodeGone, {.text = "a machine of the placement is gone"});
  }
  if (!Measured(ranks, parts_.clock.Monotonic() - memory->since)) return;
  CheckThenLaunch(job, Happening::kPreflightPassed, memory);
}

// Free memory is looked at as it is after the placement, or after the gang before has gone: a
// number from earlier is that of a GPU in use. `waited`: for the measurement.
bool Reconciler::Measured(const std::vector<RankView>& ranks, absl::Duration waited) const {
  return std::ranges::all_of(ranks, &RankView::heard_since_told) &&
         (waited >= kMeasurePatience || std::ranges::all_of(ranks, &RankView::measured_since_told));
}

void Reconciler::CheckThenLaunch(const JobPtr& job, Happening passed, Memory* memory) {
  memory->checking = true;
  parts_.executor.Run([this, job, passed] {
    Launch(job, passed);
    {
      MutexLock lock(&mutex_);
      checked_.insert(job->job().id());
    }
    Wake();
  });
}

// On the executor.
void Reconciler::Launch(const JobPtr& job, Happening passed) {
  const LaunchCheck check = CheckLaunch(*job, parts_.fleet, parts_.paths);
  if (check.accepted) {
    const int64_t generation = job->job().generation() + 1;
    return Move(job, passed,
                {.text = absl::StrCat("generation ", generation, " on ", check.nodes)});
  }
  const Failure refused = {.reason = "PREFLIGHT_REFUSED", .text = check.problem, .refused = true};
  if (passed == Happening::kRestartDue) return JudgeRestart(job, refused);
  if (check.passing) return Postpone(job, refused);
  Move(job, Happening::kPreflightRefused, {.text = check.problem, .severity = v1::SEVERITY_ERROR});
}

void Reconciler::AdvanceGang(const JobPtr& job, Memory* memory) {
  const std::vector<RankView> ranks = RanksOf(*job, *memory);
  const GangVerdict verdict = Judge(ranks);
  using Kind = GangVerdict::Kind;
  switch (verdict.kind) {
    case Kind::kFailed:
      return Move(job, Happening::kRankLost,
                  {.reason = verdict.failure->reason,
                   .text = verdict.failure->text,
                   .rank = verdict.failure->rank,
                   .severity = v1::SEVERITY_ERROR});
    case Kind::kCompleted:
    case Kind::kStopped:
      return EndWell(job, verdict);
    case Kind::kRunning:
      if (job->job().state() == v1::Job::STATE_STARTING) {
        return Move(
            job, Happening::kAllRunning,
            {.text = absl::StrCat(Count(static_cast<int64_t>(ranks.size()), "rank"), " up")});
      }
      break;
    default:
      break;
  }
  WatchForHang(job, ranks, memory);
}

void Reconciler::EndWell(const JobPtr& job, const GangVerdict& verdict) {
  const v1::WorkerFinished& words = verdict.words;
  const std::string text =
      absl::StrCat("at step ", words.step(), words.text().empty() ? "" : ": ", words.text());
  const bool completed = verdict.kind == GangVerdict::Kind::kCompleted;
  if (completed || words.reason() == kDataExhausted) {
    return Move(job, Happening::kGangCompleted, {.reason = words.reason(), .text = text});
  }
  const v1::StopRequest& stop = job->job().stop();
  const bool at_step = stop.mode() == v1::STOP_MODE_AT_STEP;
  if (stop.mode() == v1::STOP_MODE_UNSPECIFIED || (at_step && words.step() < stop.at_step())) {
    // Somebody else stopped the workers, e.g. a machine that is going down. A stop at a later step
    // stays in force.
    return Move(job, Happening::kRankLost,
                {.reason = "PREEMPTED",
                 .text = absl::StrCat("the workers were asked to end from outside ", text),
                 .severity = v1::SEVERITY_WARNING});
  }
  if (at_step && words.step() > stop.at_step()) {
    return Move(job, Happening::kGangStopped,
                {.reason = "STOPPED_LATE",
                 .text = absl::StrCat(text, "; step ", stop.at_step(),
                                      " was past when the ranks heard of the stop"),
                 .severity = v1::SEVERITY_WARNING});
  }
  Move(job, Happening::kGangStopped, {.reason = words.reason(), .text = text});
}

void Reconciler::WatchForHang(const JobPtr& job, const std::vector<RankView>& ranks,
                              Memory* memory) {
  std::vector<RankProgress> progress;
  for (const RankView& rank : ranks) {
    if (!rank.worker.has_value()) continue;
    const v1::WorkerObservation& worker = *rank.worker;
    const auto journal = parts_.store.Journal(job->job().id(), job->job().generation(), rank.rank);
    progress.push_back({.rank = rank.rank,
                        .node = rank.node_name,
                        .heard = rank.node == RankView::Node::kReady,
                        .running = worker.state() != v1::WorkerObservation::STATE_EXITED,
                        .step = worker.step(),
                        .first_step = journal.ok() ? journal->first_step : 0,
                        .phase = worker.phase(),
                        .place = worker.place(),
                        .process_state = worker.process_state(),
                        .since_progress = absl::Seconds(worker.seconds_since_progress())});
    if (journal.ok()) {
      memory->last_checkpoint =
          std::max(memory->last_checkpoint, absl::Seconds(journal->last_checkpoint_seconds));
    }
  }
  const absl::Duration now = parts_.clock.Monotonic();
  const HangLimits limits = LimitsOf(job->job().spec().restart(), memory->last_checkpoint);
  const HangDecision decision = DecideHang(progress, limits, memory->hang, now);
  switch (decision.kind) {
    case HangDecision::Kind::kFine:
      if (memory->hang.suspected) {
        Note(job, Incident("HANG_OVER", "every rank gets on again", v1::SEVERITY_INFO));
      }
      memory->hang = {};
      return;
    case HangDecision::Kind::kDump:
      memory->hang = {.suspected = true, .suspected_since = now};
      return DumpHungJob(job, decision.text);
    case HangDecision::Kind::kWait:
      return;
    case HangDecision::Kind::kEnd:
      return Move(job, Happening::kRankLost,
                  {.reason = kHang,
                   .text = decision.text,
                   .rank = decision.rank,
                   .severity = v1::SEVERITY_ERROR});
  }
}

void Reconciler::DumpHungJob(const JobPtr& job, const std::string& why) {
  const std::vector<v1::RankPlacement> ranks(job->placements().begin(), job->placements().end());
  const std::string id = job->job().id();
  const std::filesystem::path file =
      parts_.dumps_dir / absl::StrFormat("%s.gen-%06d.hang.txt", id, job->job().generation());
  Note(job, Incident("HANG_SUSPECTED", absl::StrCat(why, "; dumping all ranks to ", file.string()),
                     v1::SEVERITY_WARNING));
  parts_.dumps.Request(job->job(), ranks, kDumpGrace - absl::Seconds(1),
                       [file, why](const std::vector<v1::StackDump>& dumps) {
                         std::error_code error;
                         std::filesystem::create_directories(file.parent_path(), error);
                         std::ofstream out(file);
                         out << why << "\n";
                         for (const v1::StackDump& dump : dumps) {
                           out << "\n== rank " << dump.rank() << " on " << dump.node() << " pid "
                               << dump.pid() << "\n"
                               << dump.status() << "\n"
                               << dump.stacks();
                           if (!dump.error().empty()) out << "incomplete: " << dump.error() << "\n";
                         }
                       });
}

void Reconciler::Note(const JobPtr& job, const v1::JobEvent& event) {
  const auto noted =
      parts_.store.Update(job->job().id(), [&](v1::StoredJob*, std::vector<v1::JobEvent>* events) {
        events->push_back(event);
        return absl::OkStatus();
      });
  if (!noted.ok()) {
    spdlog::error("job {}: {}", job->job().id(), std::string(noted.status().message()));
  }
}

void Reconciler::AdvanceRestarting(const JobPtr& job, Memory* memory) {
  if (!job->restart_decided()) {
    const GangVerdict verdict = Judge(RanksOf(*job, *memory));
    if (!verdict.gone) return;
    // A hang or a stop from outside was known before the gang was ended; otherwise whoever died
    // first may only be known now.
    const Failure noted = NotedCause(job->job());
    const bool known = noted.reason == kHang || noted.reason == "PREEMPTED";
    return JudgeRestart(job, known || !verdict.failure.has_value() ? noted : *verdict.failure);
  }
  if (memory->checking) return;
  if (NodesAre(*job, RankView::Node::kLost, /*all=*/false)) {
    return Move(job, Happening::kNodeGone, {.text = "a machine is gone; queued for another"});
  }
  const absl::Duration waited = parts_.clock.Monotonic() - memory->since;
  const absl::Duration delay = absl::Seconds(job->restart_delay_seconds());
  if (waited < delay || !NodesAre(*job, RankView::Node::kReady, /*all=*/true)) return;
  if (!Measured(parts_.fleet.Ranks(*job, memory->since), waited - delay)) return;
  CheckThenLaunch(job, Happening::kRestartDue, memory);
}

RestartHistory Reconciler::HistoryOf(const v1::StoredJob& job) const {
  RestartHistory history;
  for (const int64_t nanos : job.counted_restart_unix_nanos()) {
    history.counted.push_back(absl::FromUnixNanos(nanos));
  }
  history.without_progress = job.generations_without_progress();
  history.made_progress = ProgressMark(job.job()) > job.progress_mark();
  const Refusals refusals = RefusalsOf(job.job());
  history.refusals = refusals.count;
  if (refusals.count > 0) history.refused_for = parts_.clock.Monotonic() - refusals.since;
  return history;
}

// A start from the queue that is refused for what may pass. The job gives its slots back, so that
// others may run meanwhile and it may be placed elsewhere; patience is that of a restart.
void Reconciler::Postpone(const JobPtr& job, const Failure& cause) {
  const absl::Time now = parts_.clock.Wall();
  const RestartDecision decision =
      DecideRestart(job->job().spec().restart(), HistoryOf(*job), cause, now, Jitter());
  if (!decision.restart) {
    return Move(job, Happening::kPreflightRefused,
                {.reason = decision.reason, .text = decision.text, .severity = v1::SEVERITY_ERROR});
  }
  // Before the job is back in the queue: it is not placed before its next start is due.
  NoteJudged(job->job(), cause, decision.delay);
  Move(job, Happening::kStartPostponed,
       {.text = cause.text, .severity = v1::SEVERITY_WARNING, .next_start = now + decision.delay});
}

void Reconciler::JudgeRestart(const JobPtr& job, const Failure& cause) {
  RestartHistory history = HistoryOf(*job);
  const absl::Time now = parts_.clock.Wall();
  const RestartDecision decision =
      DecideRestart(job->job().spec().restart(), history, cause, now, Jitter());
  if (!decision.restart) {
    const Happening end = cause.final ? Happening::kFailedForGood : Happening::kGaveUp;
    return Move(job, end,
                {.reason = decision.reason,
                 .text = decision.text,
                 .rank = cause.rank,
                 .severity = v1::SEVERITY_ERROR});
  }
  const auto change = [&](v1::StoredJob* stored,
                          std::vector<v1::JobEvent>* events) -> absl::Status {
    if (stored->job().state() != v1::Job::STATE_RESTARTING) {
      return absl::AbortedError("the job has moved on");
    }
    const bool started = !stored->restart_decided();  // else preflight refused the next start
    stored->set_restart_decided(true);
    stored->set_restart_delay_seconds(absl::ToDoubleSeconds(decision.delay));
    stored->set_generations_without_progress(decision.without_progress);
    std::erase_if(history.counted, [&](absl::Time t) { return now - t >= kRestartWindow; });
    if (decision.counts) history.counted.push_back(now);
    stored->clear_counted_restart_unix_nanos();
    for (const absl::Time time : history.counted) {
      stored->add_counted_restart_unix_nanos(absl::ToUnixNanos(time));
    }
    v1::Job& fresh = *stored->mutable_job();
    if (started) fresh.set_restarts(fresh.restarts() + 1);
    fresh.set_reason(cause.reason);
    fresh.set_message(cause.text);
    fresh.set_next_start_unix_nanos(absl::ToUnixNanos(now + decision.delay));
    events->push_back(
        Incident("RESTART_SCHEDULED",
                 absl::StrFormat("in %.1f s, because of %s: %s",
                                 absl::ToDoubleSeconds(decision.delay), cause.reason, cause.text),
                 v1::SEVERITY_WARNING, cause.rank));
    return absl::OkStatus();
  };
  const auto updated = parts_.store.Update(job->job().id(), change);
  if (updated.ok()) NoteJudged(job->job(), cause, decision.delay);
  if (!updated.ok() && !absl::IsAborted(updated.status())) {
    spdlog::error("job {}: {}", job->job().id(), std::string(updated.status().message()));
  }
}

Reconciler::Refusals Reconciler::RefusalsOf(const v1::Job& job) const {
  MutexLock lock(&mutex_);
  const auto found = refusals_.find(job.id());
  const bool stale = found == refusals_.end() || found->second.progress_mark != ProgressMark(job);
  return stale ? Refusals() : found->second;
}

void Reconciler::NoteJudged(const v1::Job& job, const Failure& cause, absl::Duration delay) {
  Refusals refusals = RefusalsOf(job);
  if (refusals.count == 0) refusals.since = parts_.clock.Monotonic();
  ++refusals.count;
  refusals.progress_mark = ProgressMark(job);
  refusals.due = parts_.clock.Monotonic() + delay;
  MutexLock lock(&mutex_);
  if (cause.refused) {
    refusals_[job.id()] = refusals;
  } else {
    refusals_.erase(job.id());
  }
}

void Reconciler::AdvanceStopping(const JobPtr& job, Memory* memory) {
  const v1::StopMode mode = job->job().stop().mode();
  if (job->restart_decided()) {
    return Move(job, Happening::kGangStopped, {.text = "between two starts"});
  }
  const std::vector<RankView> ranks = RanksOf(*job, *memory);
  const GangVerdict verdict = Judge(ranks);
  using Kind = GangVerdict::Kind;
  if (verdict.kind == Kind::kCompleted || verdict.kind == Kind::kStopped) {
    return EndWell(job, verdict);
  }
  if (verdict.gone) {
    const bool failed = verdict.kind == Kind::kFailed && mode != v1::STOP_MODE_NOW;
    return Move(job, Happening::kGangStopped,
                {.text = failed ? absl::StrCat("without a last checkpoint: ", verdict.failure->text)
                                : "ended at once",
                 .severity = failed ? v1::SEVERITY_WARNING : v1::SEVERITY_INFO});
  }
  if (job->gang_ending() || mode == v1::STOP_MODE_NOW) return;
  if (verdict.kind == Kind::kFailed) {
    return Move(job, Happening::kRankLost,
                {.reason = verdict.failure->reason,
                 .text = verdict.failure->text,
                 .rank = verdict.failure->rank,
                 .severity = v1::SEVERITY_WARNING});
  }
  if (StopIsOverdue(*job, ranks, parts_.clock.Monotonic() - memory->since)) {
    return Move(job, Happening::kStopNowAsked,
                {.reason = "STOP_GRACE_EXCEEDED",
                 .text = "the workers did not end within restart.stop_grace_seconds",
                 .severity = v1::SEVERITY_WARNING});
  }
}

void Reconciler::PlaceQueued(const std::vector<JobPtr>& active) {
  std::vector<NodeSlots> nodes;
  bool any_gpu = false;
  for (const NodeView& node : parts_.fleet.Nodes()) {
    if (node.state != RankView::Node::kReady) continue;
    nodes.push_back(FreeSlots(node.info, active));
    any_gpu = any_gpu || nodes.back().gpus_total > 0;
  }
  std::vector<QueuedJob> queue;
  for (const JobPtr& job : active) {
    if (job->job().state() != v1::Job::STATE_QUEUED) continue;
    // Postponed: out of line until its next start is due, so that nobody waits behind it.
    const bool postponed = job->job().next_start_unix_nanos() != 0;
    if (postponed && parts_.clock.Monotonic() < RefusalsOf(job->job()).due) continue;
    queue.push_back(InQueue(*job, any_gpu));
  }
  const QueuePlan plan = Schedule(std::move(queue), std::move(nodes));
  for (const std::string& id : parts_.board.Post(plan)) parts_.changed(id);
  for (const Placement& placement : plan.placements) {
    const bool cuda = !placement.ranks.front().cuda_device().empty();
    const auto change = [&](v1::StoredJob* stored,
                            std::vector<v1::JobEvent>* events) -> absl::Status {
      const std::string where = absl::StrCat(
          Count(static_cast<int64_t>(placement.ranks.size()), "rank"),
          placement.ranks.size() == 1 ? " on " : ", the first on ", placement.ranks.front().node());
      NSA_RETURN_IF_ERROR(
          Apply(Happening::kPlaced, {.text = where}, parts_.clock.Wall(), stored, events));
      stored->mutable_placements()->Assign(placement.ranks.begin(), placement.ranks.end());
      ResolveDevice(cuda, stored->mutable_job()->mutable_spec());
      return absl::OkStatus();
    };
    const auto placed = parts_.store.Update(placement.job_id, change);
    if (!placed.ok()) {
      spdlog::warn("job {}: {}", placement.job_id, std::string(placed.status().message()));
    }
  }
  if (!plan.placements.empty()) Wake();
}

// The job may have moved on since it was looked at (a stop, a preflight that ended); then the table
// refuses, and the next look sees the new state.
void Reconciler::Move(const JobPtr& job, Happening happening, const Because& because) {
  const auto change = [&](v1::StoredJob* stored,
                          std::vector<v1::JobEvent>* events) -> absl::Status {
    if (stored->job().state() != job->job().state() ||
        stored->job().generation() != job->job().generation() ||
        stored->queued_unix_nanos() != job->queued_unix_nanos()) {
      return absl::AbortedError("the job has moved on");
    }
    if (happening == Happening::kStopNowAsked) {
      stored->mutable_job()->mutable_stop()->set_mode(v1::STOP_MODE_NOW);
    }
    return Apply(happening, because, parts_.clock.Wall(), stored, events);
  };
  const auto moved = parts_.store.Update(job->job().id(), change);
  if (absl::IsAborted(moved.status())) return;
  if (!moved.ok()) {
    spdlog::error("job {}: {}", job->job().id(), std::string(moved.status().message()));
    return;
  }
  spdlog::info("job {}: {} -> {} ({}: {})", job->job().id(), StateName(job->job().state()),
               StateName((*moved)->job().state()), (*moved)->job().reason(), because.text);
}

}  // namespace nsa::server
