#include "worker/agent/rank_process.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/thread_name.h"
#include "common/run/atomic_file.h"
#include "common/run/control_socket.h"
#include "common/run/rank_address.h"
#include "common/run/run_file.h"
#include "common/run/status_page.h"
#include "spdlog/spdlog.h"
#include "worker/agent/launch.h"
#include "worker/agent/rank/await_user.h"
#include "worker/agent/run_folder.h"
#include "worker/agent/user/unix_user.h"

namespace nsa::agent {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kRankPoll =
    absl::Milliseconds(100);  // between checks of process and journal
// Each report is a transaction in the coordinator's store.
constexpr absl::Duration kReportEvery = absl::Milliseconds(500);
constexpr absl::Duration kMaxReportBackoff = absl::Seconds(5);
constexpr absl::Duration kStopPatience = absl::Milliseconds(500);
// How long the coordinator may refuse the log of a worker that has ended, for example because its
// disk is full. The slot stays taken meanwhile.
constexpr absl::Duration kLogPatience = absl::Minutes(1);
// The same for a worker that had to end at once.
constexpr absl::Duration kLogPatienceAtOnce = absl::Seconds(5);

// Reported with a start_error: another start would end the same way.
constexpr int kRefusedForGood = 3;

// An address with its token, and more than that.
constexpr size_t kAddressBytes = 1024;

bool HasContent(const fs::path& path) {
  std::error_code error;
  return fs::file_size(path, error) > 0 && !error;
}

// The exit code that belongs to the outcome in a worker's last record.
int CodeOf(v1::Outcome outcome) {
  switch (outcome) {
    case v1::OUTCOME_COMPLETED:
    case v1::OUTCOME_STOPPED:
      return 0;
    case v1::OUTCOME_FAILED:
      return 1;
    case v1::OUTCOME_FAILED_FINAL:
      return 3;
    default:
      return -1;
  }
}

}  // namespace

RankProcess::RankProcess(const Shared& shared, RankKey key, RunDir dir)
    : shared_(shared),
      key_(std::move(key)),
      dir_(std::move(dir)),
      cgroup_(shared.options.cgroups.Of(key_)),
      reporter_(key_, dir_, shared.link) {}

std::unique_ptr<RankProcess> RankProcess::Start(const Shared& shared,
                                                const v1::WorkerAssignment& assignment) {
  const RankKey key = {assignment.job_id(), assignment.generation(), assignment.rank()};
  const auto folder = shared.options.unix_users ? &RunDir::OfAnother : &RunDir::Of;
  const RunDir dir = folder(shared.options.state_dir, key.job_id, key.generation, key.rank);
  std::unique_ptr<RankProcess> rank(new RankProcess(shared, key, dir));
  {
    const MutexLock lock(&rank->mutex_);
    rank->beginning_ = true;
  }
  rank->thread_ = std::thread([raw = rank.get(), assignment] {
    NameThread(absl::StrFormat("rank-%d", assignment.rank()).c_str());
    const auto user = raw->AwaitUser(assignment);
    if (raw->IsEnding()) return;
    raw->Begin(assignment, user);
    raw->Run();
  });
  return rank;
}

absl::StatusOr<std::optional<UnixUser>> RankProcess::AwaitUser(
    const v1::WorkerAssignment& assignment) const {
  if (!shared_.options.unix_users) return std::nullopt;
  NSA_ASSIGN_OR_RETURN(UnixUser user, AwaitUnixUser(assignment.unix_user(),
                                                    [this] { return IsEnding() || WasKilled(); }));
  return user;
}

void RankProcess::Begin(const v1::WorkerAssignment& assignment,
                        const absl::StatusOr<std::optional<UnixUser>>& user) {
  if (WasKilled()) return SetExit({.killed_by_agent = true});
  if (!user.ok()) {
    spdlog::error("{}: not started: {}", key_.ToString(), user.status().ToString());
    return SetExit({.code = absl::IsUnavailable(user.status()) ? -1 : kRefusedForGood,
                    .start_error = std::string(user.status().message())});
  }
  const absl::StatusOr<ProcessIdentity> identity =
      Launch(assignment, dir_, user->has_value() ? &**user : nullptr, cgroup_, shared_.options);
  if (!identity.ok()) {
    spdlog::error("{}: not started: {}", key_.ToString(), identity.status().ToString());
    return SetExit({.start_error = std::string(identity.status().message())});
  }
  spdlog::info("{}: started as process {}{}", key_.ToString(), identity->pid,
               user->has_value() ? " of " + (*user)->name : "");
  {
    const MutexLock lock(&mutex_);
    identity_ = *identity;
    process_since_ = RealClock().Monotonic();
    is_child_ = true;
    beginning_ = false;
  }
  if (WasKilled()) Kill();
}

bool RankProcess::WasKilled() const {
  const MutexLock lock(&mutex_);
  return killed_;
}

bool RankProcess::IsAtOnce() const {
  const MutexLock lock(&mutex_);
  return at_once_;
}

bool RankProcess::IsEnding() const {
  const MutexLock lock(&mutex_);
  return ending_;
}

std::unique_ptr<RankProcess> RankProcess::Adopt(const Shared& shared, const RankKey& key,
                                                const RunDir& dir) {
  absl::StatusOr<ProcessIdentity> identity = ReadIdentity(dir.identity());
  if (!identity.ok()) identity = FindWorkerOf(dir);
  std::unique_ptr<RankProcess> rank(new RankProcess(shared, key, dir));
  {
    const MutexLock lock(&rank->mutex_);
    if (identity.ok()) rank->identity_ = *identity;
    rank->process_since_ = RealClock().Monotonic();
    rank->exit_ = LoadExit(dir.exit());
    const bool ran = identity.ok() || rank->exit_.has_value() || HasContent(dir.journal()) ||
                     HasContent(dir.log());
    if (!ran) return nullptr;
  }
  spdlog::info("{}: adopted, {}", key.ToString(),
               identity.ok() && IsAlive(*identity) ? absl::StrFormat("process %d", identity->pid)
                                                   : "it has ended");
  rank->thread_ = std::thread([raw = rank.get()] {
    NameThread(absl::StrFormat("rank-%d", raw->key_.rank).c_str());
    raw->Run();
  });
  return rank;
}

RankProcess::~RankProcess() {
  {
    const MutexLock lock(&mutex_);
    ending_ = true;
  }
  reporter_.Cancel();
  wake_.SignalAll();
  if (thread_.joinable()) thread_.join();
}

std::optional<ProcessIdentity> RankProcess::identity() const {
  const MutexLock lock(&mutex_);
  return exit_.has_value() ? std::nullopt : identity_;
}

bool RankProcess::ended() const {
  const MutexLock lock(&mutex_);
  return exit_.has_value();
}

bool RankProcess::settled() const {
  const MutexLock lock(&mutex_);
  return settled_;
}

void RankProcess::Run() {
  absl::Duration pause = kReportEvery;
  absl::Duration next_report = RealClock().Monotonic();
  if (!identity().has_value()) EndGroup();  // An earlier agent may have died before it did.
  while (true) {
    DeliverStop();
    CheckExit();
    bool ended = false;
    bool now = false;
    {
      const MutexLock lock(&mutex_);
      if (ending_) return;
      ended = exit_.has_value();
      now = std::exchange(nudged_, false);
    }
    // After a failure even an urgent record waits until the next attempt is due.
    if (LookAtJournal() && pause == kReportEvery) now = true;
    if (now || RealClock().Monotonic() >= next_report) {
      const Reporter::Result result = Report(ended);
      if (ended && result == Reporter::Result::kComplete) return;
      pause = result != Reporter::Result::kFailed ? kReportEvery
                                                  : std::min(2 * pause, kMaxReportBackoff);
      next_report = RealClock().Monotonic();
      if (result != Reporter::Result::kMore) next_report += pause;
    }
    const absl::Duration left = next_report - RealClock().Monotonic();
    const MutexLock lock(&mutex_);
    if (!ending_ && !nudged_) wake_.WaitFor(&mutex_, std::min(kRankPoll, left));
  }
}

// True when a record must be reported at once. The start of the worker is announced at once, even
// if its record cannot be reported yet.
bool RankProcess::LookAtJournal() {
  const bool had_started = reporter_.saw_started();
  const bool urgent = reporter_.Look();
  if (reporter_.saw_started() != had_started) shared_.on_change();
  return urgent;
}

// With `ended`, this call reads everything that the worker ever wrote.
Reporter::Result RankProcess::Report(bool ended) {
  std::optional<absl::Duration> log_patience;
  if (ended) log_patience = IsAtOnce() ? kLogPatienceAtOnce : kLogPatience;
  const Reporter::Result result = reporter_.Pump(log_patience);
  if (!ended || result != Reporter::Result::kComplete) return result;
  {
    const MutexLock lock(&mutex_);
    settled_ = true;
  }
  shared_.on_change();
  return result;
}

void RankProcess::Nudge() {
  const MutexLock lock(&mutex_);
  nudged_ = true;
  wake_.SignalAll();
}

void RankProcess::CheckExit() {
  {
    const MutexLock lock(&mutex_);
    if (exit_.has_value()) return;
  }
  const std::optional<RankExit> exit = FindExit();
  if (!exit.has_value()) return;
  spdlog::info("{}: ended with {}{}", key_.ToString(),
               exit->signal != 0 ? absl::StrFormat("signal %d", exit->signal)
                                 : absl::StrFormat("code %d", exit->code),
               exit->out_of_memory.empty() ? "" : ": memory ran out, " + exit->out_of_memory);
  EndGroup();
  SetExit(*exit);
}

std::optional<RankExit> RankProcess::FindExit() {
  std::optional<ProcessIdentity> process;
  bool is_child = false;
  {
    const MutexLock lock(&mutex_);
    process = identity_;
    is_child = is_child_;
  }
  recent_kills_.Look(RealClock().Monotonic());
  RankExit exit;
  if (is_child) {
    const absl::StatusOr<std::optional<ExitStatus>> status = TryReap(process->pid);
    if (status.ok() && !status->has_value()) return std::nullopt;
    if (status.ok()) exit = {.code = (*status)->code, .signal = (*status)->signal};
  } else if (process.has_value() && IsAlive(*process)) {
    return std::nullopt;
  } else {
    exit.machine_restarted = process.has_value() && process->boot_id != BootId().value_or("");
  }
  exit.killed_by_agent = WasKilled();
  exit.out_of_memory = WhyOutOfMemory(exit);
  return exit;
}

std::string RankProcess::WhyOutOfMemory(const RankExit& exit) {
  recent_kills_.LookAgain(RealClock().Monotonic());
  MemoryEvidence evidence = {.own_kills = cgroup_.empty() ? 0 : OutOfMemoryKills(cgroup_),
                             .recent_kills = recent_kills_.count()};
  FindMemoryLimit(cgroup_, &evidence);
  return OutOfMemoryText(exit, evidence);
}

void RankProcess::SetExit(RankExit exit) {
  std::error_code error;
  // A start that was refused made no folder. A later agent refuses it again. Only a later agent
  // needs the file: without it, that agent reports an unknown exit code.
  if (fs::exists(dir_.Notes(), error)) {
    const absl::Status saved = SaveExit(dir_.exit(), exit);
    if (!saved.ok()) spdlog::warn("{}: {}", key_.ToString(), saved.ToString());
  }
  const MutexLock lock(&mutex_);
  exit_ = std::move(exit);
  beginning_ = false;
  nudged_ = true;  // So that the last report is made at once.
}

void RankProcess::EndGroup() const {
  if (cgroup_.empty()) return;
  if (!EndCgroup(cgroup_)) {
    spdlog::warn("{}: a process in {} cannot be ended; the next start of the agent tries again",
                 key_.ToString(), cgroup_.string());
  }
}

void RankProcess::SetStop(const v1::StopRequest& stop) {
  if (stop.mode() == v1::STOP_MODE_NOW) return Kill();
  const MutexLock lock(&mutex_);
  if (stop.mode() == stop_.mode() && stop.at_step() == stop_.at_step()) return;
  stop_ = stop;
  stop_delivered_ = stop.mode() == v1::STOP_MODE_UNSPECIFIED;
  wake_.SignalAll();
}

void RankProcess::DeliverStop() {
  v1::ControlRequest request;
  {
    const MutexLock lock(&mutex_);
    if (stop_delivered_ || exit_.has_value()) return;
    *request.mutable_stop() = stop_;
  }
  // Fails while the worker is still starting (no socket yet) or is stopped (no answer); tried again
  // later.
  const absl::StatusOr<v1::ControlReply> reply =
      ControlCall(dir_.control(), request, kStopPatience);
  if (!reply.ok()) return;
  spdlog::info("{}: told to stop {}, is at step {}{}{}", key_.ToString(),
               request.stop().mode() == v1::STOP_MODE_AT_STEP
                   ? absl::StrFormat("after step %d", request.stop().at_step())
                   : "after the step in progress",
               reply->step(), reply->error().empty() ? "" : ": ", reply->error());
  const MutexLock lock(&mutex_);
  const bool same =
      stop_.mode() == request.stop().mode() && stop_.at_step() == request.stop().at_step();
  if (same) stop_delivered_ = true;
}

void RankProcess::Introduce(const v1::WorkerAssignment& assignment) {
  if (!assignment.several_machines()) return;
  const std::string& next = assignment.next_rank_address();
  {
    const MutexLock lock(&mutex_);
    tells_address_ = true;
    if (knows_next_ || next.empty() || beginning_) return;
  }
  if (!ParseRankAddress(next).has_value()) {
    spdlog::error("{}: the next rank's address is not one", key_.ToString());
    return;
  }
  const int rank = (key_.rank + 1) % assignment.world_size();
  const absl::Status written = WriteNextAddress(dir_, key_, rank, next);
  if (!written.ok()) {  // tried again with the next assignment
    spdlog::error("{}: {}", key_.ToString(), written.ToString());
    return;
  }
  const MutexLock lock(&mutex_);
  knows_next_ = true;
}

// The line that the worker has written; empty until then.
std::string RankProcess::OwnAddress() const {
  const auto text = ReadRunFile(
      RankAddressFile(MeetingFolder(dir_.rendezvous(), key_.generation), key_.rank), kAddressBytes);
  return text.ok() && ParseRankAddress(*text).has_value() ? *text : "";
}

void RankProcess::Kill() {
  std::optional<ProcessIdentity> process;
  {
    const MutexLock lock(&mutex_);
    at_once_ = true;
    if (!exit_.has_value()) process = identity_;
    killed_ = killed_ || process.has_value() || beginning_;
  }
  if (!process.has_value()) return;
  const absl::Status status = SignalProcess(*process, SIGKILL);
  if (!status.ok() && !absl::IsNotFound(status)) {
    spdlog::error("{}: kill: {}", key_.ToString(), status.ToString());
  }
  if (!cgroup_.empty()) KillCgroup(cgroup_);
  wake_.SignalAll();
}

v1::WorkerObservation RankProcess::Observe() const {
  v1::WorkerObservation out;
  out.set_job_id(key_.job_id);
  out.set_generation(key_.generation);
  out.set_rank(key_.rank);
  const auto status = ReadStatusPage(dir_.status());
  if (status.ok()) {
    out.set_step(status->step);
    out.set_phase(PhaseName(status->phase));
    out.set_place(status->Place());
    out.set_telemetry_error(status->telemetry_error);
    const absl::Duration quiet =
        RealClock().Monotonic() - absl::Nanoseconds(status->updated_monotonic_nanos);
    out.set_seconds_since_progress(std::max(0.0, absl::ToDoubleSeconds(quiet)));
  }
  const MutexLock lock(&mutex_);
  has_page_ = has_page_ || status.ok();
  if (!has_page_ && identity_.has_value() && !exit_.has_value()) {
    // Its program has not come so far, as when it is read from a disk that does not answer.
    out.set_seconds_since_progress(absl::ToDoubleSeconds(RealClock().Monotonic() - process_since_));
  }
  if (tells_address_) out.set_rank_address(OwnAddress());
  if (identity_.has_value()) {
    out.set_pid(identity_->pid);
    out.set_process_state(std::string(1, ProcessState(*identity_)));
  }
  // A worker counts as ended only when everything it wrote has been reported.
  if (!settled_) {
    out.set_state(reporter_.saw_started() ? v1::WorkerObservation::STATE_RUNNING
                                          : v1::WorkerObservation::STATE_STARTING);
    return out;
  }
  out.set_state(v1::WorkerObservation::STATE_EXITED);
  const bool unknown = exit_->code < 0 && exit_->signal == 0 && exit_->start_error.empty();
  const std::optional<v1::Outcome> outcome = reporter_.outcome();
  out.set_exit_code(unknown && outcome.has_value() ? CodeOf(*outcome) : exit_->code);
  out.set_exit_signal(exit_->signal);
  out.set_killed_by_agent(exit_->killed_by_agent);
  out.set_machine_restarted(exit_->machine_restarted);
  out.set_start_error(exit_->start_error);
  out.set_out_of_memory(exit_->out_of_memory);
  return out;
}

}  // namespace nsa::agent
