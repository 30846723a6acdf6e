#include "server/act/local_agent.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/base/thread_name.h"
#include "common/run/data_environment.h"
#include "common/run/file_lock.h"
#include "common/run/gpu_environment.h"
#include "spdlog/spdlog.h"

namespace nsa::server {
namespace {

constexpr char kLockFile[] = "agent.lock";
constexpr char kLogFile[] = "agent.log";
constexpr absl::Duration kCheckEvery = absl::Milliseconds(250);
// After an agent has lived this long, the delay is reset to the first one.
constexpr absl::Duration kHealthy = absl::Seconds(30);

// The environment variables that are passed on to the agent. The agent in turn decides what workers
// get.
std::vector<std::string> PassedOn() {
  return WithGpuEnvironment(
      WithDataEnvironment({"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR",
                           "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "NSA_LOG_LEVEL",
                           "OMP_NUM_THREADS", "ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"}));
}

}  // namespace

LocalAgent::LocalAgent(Options options, const Clock& clock)
    : options_(std::move(options)), clock_(clock), backoff_(options_.first_backoff) {}

std::unique_ptr<LocalAgent> LocalAgent::Start(Options options, const Clock& clock) {
  std::unique_ptr<LocalAgent> agent(new LocalAgent(std::move(options), clock));
  agent->thread_ = std::thread([raw = agent.get()] { raw->Loop(); });
  return agent;
}

LocalAgent::~LocalAgent() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    woken_.SignalAll();
  }
  thread_.join();
}

std::optional<ProcessIdentity> LocalAgent::process() const {
  MutexLock lock(&mutex_);
  return process_;
}

void LocalAgent::Loop() {
  NameThread("local-agent");
  while (true) {
    const absl::Duration wait = EnsureRunning();
    MutexLock lock(&mutex_);
    if (!stopping_) woken_.WaitFor(&mutex_, wait);
    if (stopping_) return;
  }
}

void LocalAgent::Reap() {
  if (!child_.has_value()) return;
  const auto ended = TryReap(*child_);
  if (ended.ok() && !ended->has_value()) return;
  if (ended.ok() && !failing()) {
    spdlog::warn("local agent: process {} ended (code {}, signal {})", *child_, (*ended)->code,
                 (*ended)->signal);
  }
  child_.reset();
}

bool LocalAgent::Lives() {
  const std::optional<ProcessIdentity> known = process();
  // A child that has ended would have been reaped, so this one is alive.
  if (known.has_value() && known->pid == child_) return true;
  // The lock file names the process that held it last. The kernel knows whether that process is
  // alive.
  const auto holder = ReadIdentity(options_.state_dir / kLockFile);
  if (!holder.ok() || !IsAlive(*holder)) return false;
  if (known == *holder) return true;
  const Holder whose = HolderOf(*holder);
  if (whose == Holder::kMoved && EndMoved(*holder)) return true;  // until it has ended
  if (whose != Holder::kOurs) return false;
  if (!failing()) spdlog::info("local agent: process {}", holder->pid);
  healthy_at_ = clock_.Monotonic() + kHealthy;
  MutexLock lock(&mutex_);
  process_ = *holder;
  return true;
}

LocalAgent::Holder LocalAgent::HolderOf(const ProcessIdentity& holder) const {
  const LockOrigin origin = OriginOfLock(options_.state_dir / kLockFile);
  std::error_code error;
  const bool here = std::filesystem::equivalent(origin.folder, options_.state_dir, error);
  // An agent of an earlier version does not say where it runs.
  if (origin.folder.empty() || (here && !origin.copied)) return Holder::kOurs;
  const auto there = ReadIdentity(origin.folder / kLockFile);
  return there.ok() && *there == holder ? Holder::kAnothers : Holder::kMoved;
}

bool LocalAgent::EndMoved(const ProcessIdentity& holder) {
  if (ended_ == holder) return true;
  const std::filesystem::path from = OriginOfLock(options_.state_dir / kLockFile).folder;
  const absl::Status sent = SignalProcess(holder, SIGTERM);
  if (!sent.ok() && !absl::IsNotFound(sent)) {
    spdlog::error(
        "local agent: process {} runs from {}, from where this state folder was moved: {}; "
        "end it (kill {}), its workers keep running",
        holder.pid, from.string(), sent.ToString(), holder.pid);
    return false;
  }
  spdlog::info(
      "local agent: ended process {}, which runs from {}, from where this state folder was moved; "
      "its workers keep running",
      holder.pid, from.string());
  ended_ = holder;
  return true;
}

// The agent appends to the file for as long as it lives, so the file is copied and emptied; what it
// writes between the two is lost.
void LocalAgent::RotateLog() {
  const std::filesystem::path log = options_.state_dir / kLogFile;
  std::error_code error;
  if (const auto bytes = std::filesystem::file_size(log, error);
      error || bytes < static_cast<uintmax_t>(options_.log_bytes)) {
    return;
  }
  std::filesystem::copy_file(log, log.string() + ".1",
                             std::filesystem::copy_options::overwrite_existing, error);
  if (!error) std::filesystem::resize_file(log, 0, error);
  if (std::exchange(log_stuck_, bool(error)) || !error) return;
  spdlog::warn("local agent: {} cannot be rotated: {}", log.string(), error.message());
}

absl::Duration LocalAgent::EnsureRunning() {
  Reap();
  RotateLog();
  if (Lives()) {
    if (clock_.Monotonic() >= healthy_at_) backoff_ = options_.first_backoff;
    return kCheckEvery;
  }
  // The agent has been started but has not taken its lock yet.
  if (child_.has_value()) return kCheckEvery;
  {
    MutexLock lock(&mutex_);
    process_.reset();
  }
  const absl::Status launched = Launch();
  if (!launched.ok() && last_problem_ != launched.message()) {
    last_problem_ = std::string(launched.message());
    spdlog::error("local agent: {}; jobs wait until an agent connects", last_problem_);
  }
  const absl::Duration wait = backoff_;
  backoff_ = std::min(2 * backoff_, options_.longest_backoff);
  if (failing() && wait < backoff_) {
    spdlog::error("local agent: it keeps ending, see {}; it is restarted every {} from now on",
                  (options_.state_dir / kLogFile).string(), absl::FormatDuration(backoff_));
  }
  return wait;
}

absl::Status LocalAgent::Launch() {
  std::error_code error;
  std::filesystem::create_directories(options_.state_dir, error);
  SpawnOptions spawn;
  spawn.argv = {options_.program.string(), "--state-dir", options_.state_dir.string(),
                "--coordinator", options_.coordinator_address};
  spawn.environment = FilterEnvironment(PassedOn());
  spawn.working_dir = options_.state_dir;
  spawn.output = options_.state_dir / kLogFile;
  NSA_ASSIGN_OR_RETURN(const ProcessIdentity identity, Spawn(spawn));
  child_ = identity.pid;
  if (const absl::Status status = RaiseOomScore(identity.pid, options_.oom_score); !status.ok()) {
    spdlog::warn("local agent: {}", status.ToString());
  }
  last_problem_.clear();
  if (!failing()) {
    spdlog::info("local agent: started {} as process {}", options_.program.string(), identity.pid);
  }
  return absl::OkStatus();
}

}  // namespace nsa::server
