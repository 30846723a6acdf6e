#include "worker/agent/agent.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/beneath.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/thread_name.h"
#include "common/rpc/secret.h"
#include "common/rpc/tls_files.h"
#include "common/run/atomic_file.h"
#include "spdlog/spdlog.h"
#include "worker/agent/launch.h"
#include "worker/agent/link/accepts.h"
#include "worker/agent/run_folder.h"
#include "worker/agent/user/unix_user.h"

namespace nsa::agent {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kLookAtCertificates = absl::Seconds(10);
constexpr absl::Duration kConnect = absl::Milliseconds(500);
constexpr absl::Duration kPauseWithout = absl::Milliseconds(50);  // a connection
constexpr absl::Duration kMaxBackoff = absl::Seconds(2);
// How long the workers of an allocation that is over may take for their last checkpoint.
constexpr absl::Duration kLastCheckpoint = absl::Minutes(5);

// In the state folder: the job store under which the workers here were started.
constexpr char kStoreFile[] = "store_id";

// Nobody answered, as opposed to an answer that is an error.
bool IsSilence(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status);
}

std::string NewIncarnation() {
  const std::string uuid = ReadWholeFile("/proc/sys/kernel/random/uuid").value_or("unknown");
  return std::string(absl::StripSuffix(uuid, "\n"));
}

template <typename Message>
RankKey KeyOf(const Message& message) {
  return {message.job_id(), message.generation(), message.rank()};
}

std::map<RankKey, v1::StopRequest> StopsOf(const v1::HeartbeatResponse& answer) {
  std::map<RankKey, v1::StopRequest> stops;
  for (const v1::UnknownWorker& unknown : answer.unknown()) stops[KeyOf(unknown)] = unknown.stop();
  return stops;
}

std::string ReadStoreId(const fs::path& state_dir) {
  const std::string text = ReadWholeFile(state_dir / kStoreFile).value_or("");
  return std::string(absl::StripAsciiWhitespace(text));
}

// One agent per state folder. The coordinator reads <state>/agent.lock to find its agent again.
absl::StatusOr<FileLock> LockStateDir(const fs::path& state_dir) {
  DisownCopies(state_dir, state_dir / "agent.lock");
  absl::StatusOr<FileLock> lock = FileLock::Take(state_dir / "agent.lock");
  if (!absl::IsAlreadyExists(lock.status())) return lock;
  return absl::AlreadyExistsError(absl::StrCat(
      "state folder: ", state_dir.string(), " is in use by another agent (",
      lock.status().message(), "); end it, or give this one a --state-dir of its own"));
}

// Closed to others; ranks that run as other users may pass through to their run folders.
absl::Status SetModeOf(const fs::path& state_dir, bool unix_users) {
  const fs::perms pass = fs::perms::group_exec | fs::perms::others_exec;
  std::error_code error;
  fs::permissions(state_dir, fs::perms::owner_all | (unix_users ? pass : fs::perms::none), error);
  return unix_users ? CheckOthersMayPass(state_dir) : absl::OkStatus();
}

absl::StatusOr<CgroupHome> FindCgroups(const AgentOptions& options) {
  NSA_ASSIGN_OR_RETURN(
      const CgroupHome home,
      FindCgroupHome(options.worker_cgroup, options.state_dir, options.agent_program));
  if (home.folder.empty()) {
    spdlog::info("workers get no cgroups of their own: {}", home.why_not);
  } else {
    spdlog::info("workers get cgroups of their own in {}", home.folder.string());
  }
  return home;
}

// Refuses certificates that cannot be used, and warns of those that soon cannot.
absl::Status CheckCertificates(const v1::TlsConfig& tls, absl::Time now) {
  NSA_ASSIGN_OR_RETURN(const TlsFiles files, ReadTlsFiles(tls, now));
  for (const CertificateEnd& end : files.ends) {
    if (!EndsSoon(end, now)) continue;
    spdlog::warn("{}: {} {}; {}", end.field, end.file, EndText(end, now), RenewalText(end));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Agent>> Agent::Start(const AgentOptions& given,
                                                    std::function<void(End)> ended) {
  AgentOptions options = given;
  std::error_code error;
  fs::create_directories(options.state_dir, error);
  if (error) {
    return absl::ErrnoToStatus(error.value(), "state folder: " + options.state_dir.string());
  }
  NSA_RETURN_IF_ERROR(SetModeOf(options.state_dir, options.unix_users));
  NSA_ASSIGN_OR_RETURN(FileLock lock, LockStateDir(options.state_dir));
  NSA_RETURN_IF_ERROR(CheckOpensBeneath(options.state_dir / "agent.lock"));
  NSA_ASSIGN_OR_RETURN(options.cgroups, FindCgroups(options));
  const fs::path secret = options.state_dir / "node.secret";
  NSA_RETURN_IF_ERROR(MakeSecretFile("node.secret", secret).status());
  NSA_ASSIGN_OR_RETURN(options.secret, ReadSecretFile("node.secret", secret));
  NSA_RETURN_IF_ERROR(CheckCertificates(options.tls, RealClock().Wall()));
  NSA_ASSIGN_OR_RETURN(std::unique_ptr<Link> link, Link::Open(options));
  link->set_store_id(ReadStoreId(options.state_dir));
  std::unique_ptr<Agent> agent(
      new Agent(options, std::move(lock), std::move(link), std::move(ended)));
  agent->AdoptAll();
  agent->thread_ = std::thread([raw = agent.get()] { raw->HeartbeatLoop(); });
  return agent;
}

Agent::Agent(const AgentOptions& options, FileLock lock, std::unique_ptr<Link> link,
             std::function<void(End)> ended)
    : options_(options),
      lock_(std::move(lock)),
      link_(std::move(link)),
      ended_(std::move(ended)),
      incarnation_(NewIncarnation()),
      boot_id_(BootId().value_or("")),
      shared_{options_, link_.get(), [this] { OnChange(); }},
      inventory_(options_),
      dumps_(options_, link_.get()),
      profiles_(link_.get()),
      caller_(link_.get()) {}

Agent::~Agent() {
  {
    const MutexLock lock(&mutex_);
    ending_ = true;
  }
  caller_.Cancel();
  wake_.SignalAll();
  if (thread_.joinable()) thread_.join();
  ranks_.clear();  // Now, because their threads call OnChange().
}

void Agent::AdoptAll() {
  for (const RunFolder& folder : FindRunFolders(options_.state_dir)) {
    std::unique_ptr<RankProcess> rank = RankProcess::Adopt(shared_, folder.key, folder.dir);
    if (rank != nullptr) {
      ranks_[folder.key] = std::move(rank);
    } else {
      RemoveRunFolder(folder.dir);
    }
  }
  std::set<fs::path> kept;
  for (const auto& [key, rank] : ranks_) kept.insert(options_.cgroups.Of(key));
  for (const fs::path& cgroup : options_.cgroups.All()) {
    if (kept.contains(cgroup)) continue;
    spdlog::info("ending what is left in {}", cgroup.string());
    EndCgroup(cgroup);
  }
}

void Agent::HeartbeatLoop() {
  NameThread("heartbeat");
  absl::Duration pause = options_.heartbeat;
  absl::Duration next = RealClock().Monotonic();
  while (WaitUntil(next)) {
    const absl::Duration start = RealClock().Monotonic();
    if (IsLeaving()) StopWorkers();
    const absl::Status status = Heartbeat();
    NoteReachable(status);
    if (over_) return ended_(End::kAllocationOver);
    if (!TendLink(status)) return ended_(End::kLost);
    FollowCertificates();
    pause = status.ok() ? options_.heartbeat
                        : std::min(pause * 2, std::max(kMaxBackoff, options_.heartbeat));
    // Without a connection there is no pause to speak of: Heartbeat() waits for one.
    next = start + (link_->connected() ? pause : kPauseWithout);
  }
}

bool Agent::TendLink(const absl::Status& status) {
  if (!IsSilence(status)) {
    answered_at_ = RealClock().Monotonic();
    fresh_ = 0;
    return true;
  }
  switch (NextStepNow()) {
    case SilenceStep::kWait:
      return true;
    case SilenceStep::kReopen:
      opened_at_ = RealClock().Monotonic();
      if (!ReopenLink("no heartbeat is answered, and the files of tls")) return true;
      ++fresh_;
      spdlog::warn(
          "coordinator {}: it accepts connections but answers no heartbeat; "
          "fresh connection {} of {}",
          options_.coordinator_address, fresh_, options_.silence.fresh);
      return true;
    case SilenceStep::kEnd:
      break;
  }
  spdlog::error(
      "coordinator {}: it accepts connections but answered no heartbeat for {}, over {} "
      "fresh connections; the agent ends to be started again, its workers keep running",
      options_.coordinator_address,
      absl::FormatDuration(absl::Trunc(RealClock().Monotonic() - answered_at_, absl::Seconds(1))),
      fresh_);
  return false;
}

void Agent::FollowCertificates() {
  const absl::Duration now = RealClock().Monotonic();
  if (now < look_at_certificates_) return;
  look_at_certificates_ = now + kLookAtCertificates;
  if (link_->HasOtherFiles()) ReopenLink("the files of tls have changed, but");
}

bool Agent::ReopenLink(std::string_view what) {
  const bool other = link_->HasOtherFiles();
  const absl::Status opened = link_->Reopen();
  const std::string problem = opened.ok() ? "" : opened.ToString();
  if (opened.ok() && other) {
    spdlog::info("coordinator {}: the files of tls have changed and are used from now on",
                 options_.coordinator_address);
  }
  if (std::exchange(certificates_problem_, problem) != problem && !opened.ok()) {
    spdlog::error("coordinator {}: {} cannot be used: {}; the ones before stay in use",
                  options_.coordinator_address, what, problem);
  }
  return opened.ok();
}

SilenceStep Agent::NextStepNow() {
  const absl::Duration now = RealClock().Monotonic();
  Silence silence = {
      .since_answer = now - answered_at_, .since_opened = now - opened_at_, .fresh = fresh_};
  silence.accepts = IsOverdue(silence, options_.silence) &&
                    AcceptsConnections(options_.coordinator_address, kConnect);
  return NextStep(silence, options_.silence);
}

void Agent::NoteReachable(const absl::Status& status) {
  if (status.ok() == std::exchange(reachable_, status.ok())) return;
  if (!reachable_) {
    spdlog::warn("coordinator {}: {}; all workers keep running", options_.coordinator_address,
                 status.ToString());
    return;
  }
  spdlog::info("coordinator {}: answers again", options_.coordinator_address);
  for (const auto& [key, rank] : ranks_) rank->Nudge();
}

// Makes the secret of this node known to the coordinator. It answers OK when it knows it already.
absl::Status Agent::Join() {
  v1::JoinRequest request;
  request.set_node(options_.node_name);
  request.set_secret_sha256(Sha256(options_.secret));
  if (!options_.join_token_file.empty()) {
    const auto token = ReadSecretFile("join_token_file", options_.join_token_file);
    // The file is not needed any more once the node has joined.
    if (token.ok()) request.set_join_token(*token);
    if (absl::IsPermissionDenied(token.status())) return token.status();
  }
  v1::JoinResponse response;
  const absl::Status status =
      caller_.Call(&v1::FleetService::StubInterface::Join, request, &response);
  // A coordinator of an earlier version knows no secrets.
  if (!status.ok() && !absl::IsUnimplemented(status)) return status;
  joined_ = true;
  return absl::OkStatus();
}

absl::Status Agent::Heartbeat() {
  // Connects before observing, so that the observations are fresh when they are sent.
  NSA_RETURN_IF_ERROR(link_->Connect(kConnect));
  if (!joined_) NSA_RETURN_IF_ERROR(Join());
  const v1::HeartbeatRequest request = Observe();
  v1::HeartbeatResponse response;
  const absl::Status status =
      caller_.Call(&v1::FleetService::StubInterface::Heartbeat, request, &response);
  // The coordinator does not know the secret (any more).
  if (absl::IsUnauthenticated(status)) joined_ = false;
  // No other agent is answered so.
  if (absl::IsNotFound(status) && !options_.allocation.empty()) EndAllocation();
  NSA_RETURN_IF_ERROR(status);
  Converge(response);
  over_ = HasLeft(request);
  return absl::OkStatus();
}

void Agent::Leave() {
  {
    const MutexLock lock(&mutex_);
    leaving_ = true;
    changed_ = true;
  }
  wake_.SignalAll();
}

bool Agent::IsLeaving() {
  const MutexLock lock(&mutex_);
  return leaving_;
}

void Agent::StopWorkers() {
  v1::StopRequest stop;
  stop.set_mode(v1::STOP_MODE_GRACEFUL);
  for (const auto& [key, rank] : ranks_) rank->SetStop(stop);
}

bool Agent::HasLeft(const v1::HeartbeatRequest& reported) {
  if (!IsLeaving()) return false;
  // Their records wait for their own job store, which does not answer.
  if (keeps_others_) {
    return std::ranges::all_of(ranks_, [](const auto& rank) { return rank.second->ended(); });
  }
  return std::ranges::all_of(reported.workers(),
                             [](const v1::WorkerObservation& worker) {
                               return worker.state() == v1::WorkerObservation::STATE_EXITED;
                             }) &&
         std::ranges::all_of(ranks_, [](const auto& rank) { return rank.second->settled(); });
}

// The coordinator gives an allocation back when its ranks have ended. If some still run, its store
// is an older backup.
void Agent::EndAllocation() {
  const absl::Duration now = RealClock().Monotonic();
  if (over_since_ == absl::InfiniteDuration()) {
    spdlog::info("allocation {} is over: ending", options_.allocation);
    over_since_ = now;
  }
  StopWorkers();
  const bool late = now - over_since_ >= kLastCheckpoint;
  over_ =
      late || std::ranges::all_of(ranks_, [](const auto& rank) { return rank.second->ended(); });
  if (!over_) return;
  for (const auto& [key, rank] : ranks_) rank->Kill();
}

v1::HeartbeatRequest Agent::Observe() const {
  v1::HeartbeatRequest request;
  *request.mutable_node() = inventory_.Read();
  request.mutable_node()->set_rank_address(options_.rank_address);
  request.mutable_node()->set_allocation(options_.allocation);
  request.mutable_node()->set_unix_users(options_.unix_users);
  request.mutable_node()->mutable_labels()->insert(options_.labels.begin(), options_.labels.end());
  request.set_incarnation(incarnation_);
  request.set_boot_id(boot_id_);
  request.set_takes_resume_from_step(true);
  for (const auto& [key, rank] : ranks_) *request.add_workers() = rank->Observe();
  if (!ranks_.empty()) request.set_store_id(link_->store_id());
  // Last, so that the coordinator sees the time of the way there only.
  request.mutable_node()->set_unix_nanos(absl::ToUnixNanos(RealClock().Wall()));
  return request;
}

// Main path 4/7: launch. Makes the running workers equal to the desired ones.
void Agent::Converge(const v1::HeartbeatResponse& desired) {
  if (desired.epoch() != epoch_) {
    epoch_ = desired.epoch();
    spdlog::info("coordinator {}: epoch {}", options_.coordinator_address, epoch_);
  }
  if (AreOfAnotherStore(desired)) return KeepOthers(desired);
  // First: it opens a trace before the run folder of a worker that has ended is removed.
  StartProfiles(desired);
  RemoveUndesired(desired);
  for (const v1::WorkerAssignment& assignment : desired.desired()) Keep(assignment);
  StartDumps(desired);
}

bool Agent::AreOfAnotherStore(const v1::HeartbeatResponse& answer) {
  const std::string own = link_->store_id();
  // An older coordinator does not say which store it has.
  const bool another = !answer.store_id().empty() && answer.store_id() != own;
  if (another && !own.empty() && !ranks_.empty()) {
    if (!std::exchange(keeps_others_, true)) {
      spdlog::warn(
          "coordinator {}: it has job store {}, and {} worker(s) here were started under {}: they "
          "keep running, and none is started, until that store answers again or an operator drains "
          "this machine",
          options_.coordinator_address, answer.store_id(), ranks_.size(), own);
    }
    return true;
  }
  if (std::exchange(keeps_others_, false)) {
    spdlog::info("coordinator {}: workers are started under job store {} again",
                 options_.coordinator_address, answer.store_id());
  }
  if (!another) return false;
  link_->set_store_id(answer.store_id());
  const absl::Status written =
      WriteFileAtomically(options_.state_dir / kStoreFile, answer.store_id() + "\n");
  if (!written.ok()) spdlog::error("job store of the coordinator: {}", written.ToString());
  return false;
}

void Agent::KeepOthers(const v1::HeartbeatResponse& answer) {
  for (const auto& [key, stop] : StopsOf(answer)) {
    const auto rank = ranks_.find(key);
    if (rank == ranks_.end()) continue;
    rank->second->SetStop(stop);
    if (!rank->second->ended()) continue;
    spdlog::info("{}: removed; job store {} has its records, apart from the last ones",
                 key.ToString(), link_->store_id());
    const RunDir dir = rank->second->dir();
    ranks_.erase(rank);
    RemoveRunFolder(dir);
  }
}

// A key is started only once: a worker that has ended is not started again. It is reported as ended
// until the coordinator removes it from the desired set.
void Agent::Keep(const v1::WorkerAssignment& assignment) {
  if (const absl::Status status = CheckAssignment(assignment); !status.ok()) {
    spdlog::error("assignment refused: {}", status.ToString());
    return;
  }
  auto rank = ranks_.find(KeyOf(assignment));
  if (rank == ranks_.end()) {
    // A worker that must end at once is not started: the coordinator treats an absent worker as
    // ended.
    if (assignment.stop().mode() == v1::STOP_MODE_NOW || IsLeaving()) return;
    rank = ranks_.emplace(KeyOf(assignment), RankProcess::Start(shared_, assignment)).first;
  }
  rank->second->Introduce(assignment);
  // A stop that Leave() asked for stays, unless it is now a more urgent one.
  if (IsLeaving() && assignment.stop().mode() != v1::STOP_MODE_NOW) return;
  rank->second->SetStop(assignment.stop());
}

void Agent::RemoveUndesired(const v1::HeartbeatResponse& desired) {
  std::set<RankKey> wanted;
  for (const v1::WorkerAssignment& assignment : desired.desired()) wanted.insert(KeyOf(assignment));
  const std::map<RankKey, v1::StopRequest> unknown = StopsOf(desired);
  for (auto it = ranks_.begin(); it != ranks_.end();) {
    if (wanted.contains(it->first)) {
      ++it;
    } else if (it->second->settled()) {
      const RunDir dir = it->second->dir();
      it = ranks_.erase(it);
      RemoveRunFolder(dir);
    } else {
      if (const auto stop = unknown.find(it->first); stop != unknown.end()) {
        it->second->SetStop(stop->second);
      } else {
        it->second->Kill();
      }
      ++it;
    }
  }
}

void Agent::StartDumps(const v1::HeartbeatResponse& desired) {
  for (const v1::DumpRequest& request : desired.dumps()) {
    const RankKey key = {request.job_id(), request.generation(), request.rank()};
    const auto rank = ranks_.find(key);
    if (rank == ranks_.end()) {
      dumps_.Start(request, RunDir{}, std::nullopt);
    } else {
      dumps_.Start(request, rank->second->dir(), rank->second->identity());
    }
  }
  dumps_.KeepOnly(desired);
}

void Agent::StartProfiles(const v1::HeartbeatResponse& desired) {
  for (const v1::ProfileOrder& order : desired.profiles()) {
    const auto rank = ranks_.find({order.job_id(), order.generation(), order.rank()});
    if (rank == ranks_.end()) {
      profiles_.Start(order, RunDir{}, std::nullopt);
    } else {
      profiles_.Start(order, rank->second->dir(), rank->second->identity());
    }
  }
  profiles_.KeepOnly(desired);
}

bool Agent::WaitUntil(absl::Duration next) {
  const MutexLock lock(&mutex_);
  while (!ending_ && !changed_) {
    const absl::Duration left = next - RealClock().Monotonic();
    if (left <= absl::ZeroDuration()) break;
    wake_.WaitFor(&mutex_, left);
  }
  changed_ = false;
  return !ending_;
}

void Agent::OnChange() {
  {
    const MutexLock lock(&mutex_);
    changed_ = true;
  }
  wake_.SignalAll();
}

}  // namespace nsa::agent
