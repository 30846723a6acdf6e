#include "server/server.h"

#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/beneath.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/job/data/url_policy.h"
#include "common/run/process.h"
#include "grpcpp/health_check_service_interface.h"
#include "server/act/dump_broker.h"
#include "server/act/executor.h"
#include "server/act/job_control.h"
#include "server/act/local_agent.h"
#include "server/act/node/node_control.h"
#include "server/act/owner_use.h"
#include "server/act/reconciler.h"
#include "server/act/retention.h"
#include "server/backup/backup.h"
#include "server/credentials.h"
#include "server/notice/notifier.h"
#include "server/notice/progress.h"
#include "server/provision/slurm_service.h"
#include "server/rpc/auth.h"
#include "server/rpc/call.h"
#include "server/rpc/coordinator_service.h"
#include "server/rpc/fleet_service.h"
#include "server/rpc/gate/unix_peer.h"
#include "server/rpc/listener.h"
#include "server/rpc/self_probe.h"
#include "server/service_manager.h"
#include "server/store/access_store.h"
#include "server/store/audit/audit_log.h"
#include "server/store/fleet.h"
#include "server/store/job_store.h"
#include "server/store/log_store.h"
#include "server/store/lost_store.h"
#include "server/store/node/node_store.h"
#include "server/store/stack_store.h"
#include "server/store/state_lock.h"
#include "server/watch/change_hub.h"
#include "server/watch/metrics.h"
#include "server/watch/metrics_http.h"
#include "server/watch/queue_board.h"
#include "server/watch/store_health.h"
#include "server/web/web.h"
#include "spdlog/spdlog.h"

namespace nsa::server {
namespace {

// Each kind of work has its own threads. A call that hangs on a user's files therefore delays
// neither heartbeats nor launches, and users' calls do not delay agents' calls.
constexpr int kCallThreads = 4;
constexpr int kAgentThreads = 4;
constexpr int kFileThreads = 4;
constexpr int kSlowThreads = 2;
constexpr int kLaunchThreads = 3;
// How many calls may wait for such a thread. Each call takes seconds, so further clients are asked
// to retry later.
constexpr size_t kFileCalls = 64;
constexpr size_t kSlowCalls = 16;
constexpr absl::Duration kRefreshEvery = absl::Seconds(1);
// What takes longer to find out and changes slowly.
constexpr absl::Duration kSurveyEvery = absl::Seconds(10);

std::string CodeName(grpc::StatusCode code) {
  return absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
}

// ResolveOptions() has checked the entries.
UrlPolicy PolicyOf(const Options& options) {
  return UrlPolicy::Make(options.allowed_urls).value_or(UrlPolicy());
}

}  // namespace

// In order of construction; destroyed in reverse.
struct Server::Parts {
  Parts(const Options& with, TlsFiles a_tls, const Clock& a_clock, FileLock a_lock,
        std::unique_ptr<AccessStore> an_access, std::unique_ptr<AuditLog> an_audit, Auth an_auth)
      : options(with),
        tls(std::move(a_tls)),
        clock(a_clock),
        lock(std::move(a_lock)),
        access(std::move(an_access)),
        audit(std::move(an_audit)),
        auth(std::move(an_auth)),
        metrics(clock, with.layer_series),
        unix_names(clock),
        store_health(clock, with.state_dir),
        fleet(clock, {.unknown = with.node_unknown,
                      .lost = with.node_lost,
                      .forgotten = with.node_forgotten}),
        logs(with.state_dir / "logs", with.log_quota_bytes),
        stacks(with.state_dir / "dumps", clock),
        dumps(clock),
        profiles(clock, [this](const std::string& id) { hub.Publish(id); }),
        paths(with.allowed_roots, with.state_dir, PolicyOf(with)) {}

  const Options options;
  const TlsFiles tls;
  const Clock& clock;
  FileLock lock;
  std::unique_ptr<AccessStore> access;
  std::unique_ptr<AuditLog> audit;
  Auth auth;
  Metrics metrics;
  UnixNames unix_names;
  StoreHealth store_health;
  ChangeHub hub;
  Fleet fleet;
  LogStore logs;
  StackStore stacks;
  DumpBroker dumps;
  ProfileBroker profiles;
  QueueBoard board;
  PathGuard paths;
  std::atomic<bool> draining = false;
  bool running = true;                // false once drained
  std::atomic<bool> serving = false;  // everything has started and draining has not begun
  std::unique_ptr<JobStore> store;
  std::unique_ptr<NodeStore> nodes;
  std::unique_ptr<JobControl> control;
  std::unique_ptr<NodeControl> node_control;
  std::unique_ptr<Web> web;
  std::unique_ptr<MetricsHttp> metrics_http;
  std::unique_ptr<NoticeProgress> notice_progress;
  std::unique_ptr<Notifier> notifier;  // null without notices
  ChangeHub::Subscription notifier_wakes;
  std::unique_ptr<Reconciler> reconciler;
  std::unique_ptr<Retention> retention;
  absl::Duration last_refresh = -absl::InfiniteDuration();  // used by the reconciler's thread only
  absl::Duration next_survey = -absl::InfiniteDuration();   // used by the reconciler's thread only
  bool knows_nodes = true;  // used by the reconciler's thread only: the last NoteKnown() succeeded
  // Executors are declared last: they end before the parts that their tasks use.
  std::unique_ptr<Executor> launches;
  std::unique_ptr<Executor> slow;
  std::unique_ptr<Executor> files;
  std::unique_ptr<Executor> agent_calls;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<CallRules> rules;
  std::unique_ptr<CallRules> agent_rules;
  std::unique_ptr<CoordinatorService> coordinator_service;
  std::unique_ptr<FleetService> fleet_service;
  Listening listening;
  std::unique_ptr<SelfProbe> probe;
  std::unique_ptr<LocalAgent> agent;
  std::unique_ptr<SlurmService> slurm;  // null unless it is configured

  absl::Status OpenStore();
  void MakeWeb();
  absl::Status StartMetrics();
  // As clients reach it, with the actual port; empty: not at all.
  const std::string& HttpAddress() const;
  std::string HttpUrl() const;
  void StartNotifier();
  void ShowCertificates();
  void MakeReconciler();
  v1::GetVersionResponse Version() const;
  std::string Warning() const;
  void MakeServices();
  absl::Status StartListening();
  void StartProbe(std::function<void()> unreachable);
  void StartAgent();
  absl::Status StartSlurm();
  void AfterTick();
  void NoteKnown();
};

absl::Status Server::Parts::OpenStore() {
  JobStore::Observer observer{
      .changed = [this](const std::string& id) { hub.Publish(id); },
      .moved = [this](v1::Job::State from,
                      const v1::StoredJob& job) { metrics.ObserveMove(from, job); },
      .deleted =
          [this](const v1::StoredJob& job, DeletedBy by) {
            metrics.ObserveDeletion(job.job().id(), by);
            if (web != nullptr) web->Forget(job.job().id());
          },
      .committed =
          [this](double seconds) {
            metrics.ObserveCommit(seconds);
            store_health.Committed();
          },
      .failed =
          [this](const std::string& operation, const absl::Status& status) {
            metrics.ObserveStoreError(operation);
            store_health.Failed(operation, status);
          }};
  NSA_ASSIGN_OR_RETURN(store, JobStore::Open(options.state_dir, clock, std::move(observer)));
  NSA_ASSIGN_OR_RETURN(nodes, NodeStore::Open(options.state_dir));
  fleet.Remember(nodes->Known());
  node_control = std::make_unique<NodeControl>(*nodes, fleet, *access, *store, clock);
  // Before any call arrives: a new notice reports everything from now on.
  std::vector<std::string> notices;
  for (const Notice& notice : options.notices.notices) notices.push_back(notice.name);
  control = std::make_unique<JobControl>(*store, fleet, *nodes, board, paths, clock,
                                         JobPolicy{.provisioners = options.provisioners(),
                                                   .notices = notices,
                                                   .quotas = options.scheduling.quotas,
                                                   .default_hours = options.default_hours});
  NSA_ASSIGN_OR_RETURN(const int64_t last, store->LastEvent());
  NSA_ASSIGN_OR_RETURN(notice_progress,
                       NoticeProgress::Open(options.state_dir, notices, last, clock));
  return absl::OkStatus();
}

// Before any call arrives: deleting a job uses it.
void Server::Parts::MakeWeb() {
  if (options.metrics_address.empty()) return;
  web = std::make_unique<Web>(Web::Parts{
      .store = *store,
      .control = *control,
      .fleet = fleet,
      .nodes = *nodes,
      .board = board,
      .logs = logs,
      .stacks = stacks,
      .dumps = dumps,
      .profiles = profiles,
      .hub = hub,
      .files = *files,
      .clock = clock,
      .draining = draining,
      .check_operator = [this](std::string_view header) { return OperatorOf(auth, header); },
      .audit = [this](const v1::AuditEntry& entry) { audit->Add(entry); },
      .changed = [this] { reconciler->Wake(); },
      .version = [this] { return Version(); },
      .warning = [this] { return Warning(); },
      .token_file = options.token_file.string(),
      .trace_folder = options.state_dir.string(),
      .page_url = options.notices.page_url});
}

absl::Status Server::Parts::StartMetrics() {
  if (options.metrics_address.empty()) return absl::OkStatus();
  MetricsHttp::Options http{
      .address = options.metrics_address,
      .text = [this] { return metrics.Text(); },
      .problem = [this] { return serving ? store_health.problem() : "not serving"; },
      .pages = [this](const HttpRequest& request) { return web->Answer(request); },
      .page_url = options.notices.page_url,
      .tls = std::nullopt,
      .may_read = nullptr};
  if (!IsLoopback(options.metrics_address)) {
    http.tls = tls;
    http.may_read = [this](std::string_view header) { return MayReadPage(auth, header); };
  }
  NSA_ASSIGN_OR_RETURN(metrics_http, MetricsHttp::Start(std::move(http), clock));
  return absl::OkStatus();
}

const std::string& Server::Parts::HttpAddress() const {
  static const std::string* const kNone = new std::string;
  return metrics_http == nullptr ? *kNone : metrics_http->address();
}

std::string Server::Parts::HttpUrl() const {
  const std::string& address = HttpAddress();
  if (address.empty()) return "";
  return absl::StrCat(IsLoopback(options.metrics_address) ? "http://" : "https://", address, "/");
}

void Server::Parts::ShowCertificates() {
  for (const CertificateEnd& end : tls.ends) {
    metrics.ObserveCertificate(end.file, end.until);
    if (!EndsSoon(end, clock.Wall())) continue;
    spdlog::warn("{}: {} {}; {}", end.field, end.file, EndText(end, clock.Wall()),
                 RenewalText(end));
  }
}

// After HTTP, whose address links need.
void Server::Parts::StartNotifier() {
  if (options.notices.notices.empty()) return;
  for (const Notice& notice : options.notices.notices) metrics.AddNotice(notice.name);
  notifier = std::make_unique<Notifier>(Notifier::Parts{
      .options = options.notices,
      .page_url = HttpUrl(),
      .store = *store,
      .progress = *notice_progress,
      .clock = clock,
      .told = [this](const std::string& notice, Told told,
                     int events) { metrics.ObserveNotice(notice, ToldWord(told), events); },
      .failed = [this](const std::string& notice) { metrics.ObserveNoticeFailure(notice); }});
  notifier_wakes = hub.Subscribe("", [this](const std::string&) { notifier->Wake(); });
}

void Server::Parts::MakeReconciler() {
  executor = std::make_unique<Executor>("calls", kCallThreads);
  agent_calls = std::make_unique<Executor>("agent-calls", kAgentThreads);
  files = std::make_unique<Executor>("file-calls", kFileThreads, kFileCalls);
  slow = std::make_unique<Executor>("slow-calls", kSlowThreads, kSlowCalls);
  launches = std::make_unique<Executor>("launches", kLaunchThreads);
  reconciler = std::make_unique<Reconciler>(
      Reconciler::Parts{.store = *store,
                        .fleet = fleet,
                        .nodes = *nodes,
                        .board = board,
                        .dumps = dumps,
                        .profiles = profiles,
                        .executor = *launches,
                        .paths = paths,
                        .clock = clock,
                        .boot_id = BootId().value_or(""),
                        .stacks = stacks,
                        .scheduling = options.scheduling,
                        .changed = [this](const std::string& id) { hub.Publish(id); },
                        .after_tick = [this] { AfterTick(); }});
  retention = std::make_unique<Retention>(Retention::Parts{.store = *store,
                                                           .logs = logs,
                                                           .executor = *slow,
                                                           .clock = clock,
                                                           .keep = options.job_retention,
                                                           .stacks = stacks,
                                                           .draining = draining});
}

void Server::Parts::AfterTick() {
  // The reconciler ticks several times a second, but metrics are scraped less often.
  const absl::Duration now = clock.Monotonic();
  if (now - last_refresh < kRefreshEvery) return;
  last_refresh = now;
  retention->Tick();
  const std::vector<JobPtr> active = store->Active();
  fleet.ForgetLost(active);
  NoteKnown();
  std::set<std::string> ids;
  for (const JobPtr& job : active) ids.insert(job->job().id());
  logs.Prune(ids);
  metrics.ObserveFleet(fleet.Nodes(), active, store->CountByState(), nodes->All());
  if (listening.tcp != nullptr) {
    const GateCounts counts = listening.tcp->counts();
    metrics.ObserveConnections(counts.known, counts.strangers,
                               absl::ToDoubleSeconds(counts.handshakes));
  }
  if (now >= next_survey) {
    next_survey = now + kSurveyEvery;
    metrics.ObserveOwners(
        UseOfOwners(*store, options.scheduling.quotas, /*only=*/"", clock.Wall()));
    if (const auto size = store->SizeNow(); size.ok()) metrics.ObserveStore(*size);
    metrics.ObserveBackup(LastBackup(options.state_dir));
  }
  if (notifier != nullptr) {
    for (const Notifier::Waiting& waiting : notifier->WhatWaits()) {
      metrics.ObserveNoticeWaiting(waiting.notice, waiting.since_unix_nanos);
    }
  }
  for (const JobPtr& job : active) {
    if (HasGang(job->job().state())) {
      metrics.ObserveRanks(job->job(), fleet.Ranks(*job, fleet.started()));
    }
  }
}

// For the next coordinator: a machine that it does not hear is absent, and not unknown to it.
void Server::Parts::NoteKnown() {
  const absl::Status noted = nodes->SetKnown(fleet.Known());
  if (std::exchange(knows_nodes, noted.ok()) && !noted.ok()) {
    spdlog::error("known machines: {}; tried again every second", noted.ToString());
  }
}

v1::GetVersionResponse Server::Parts::Version() const {
  v1::GetVersionResponse version;
  version.set_version(kVersion);
  version.set_revision(kRevision);
  if (serving) version.set_metrics_address(HttpAddress());
  version.set_state_dir(options.state_dir.string());
  version.set_store_id(store->id());
  return version;
}

std::string Server::Parts::Warning() const {
  const std::string problem = store_health.problem();
  return problem.empty() ? ""
                         : absl::StrCat(problem, "; what is shown of jobs is what was stored last");
}

void Server::Parts::MakeServices() {
  const auto rules_on = [this](Executor& on) {
    return std::make_unique<CallRules>(CallRules{
        .auth = auth,
        .executor = on,
        .draining = draining,
        .observe =
            [this](const std::string& method, grpc::StatusCode code, double seconds, bool stream) {
              metrics.ObserveCall(method, CodeName(code), seconds, stream);
            },
        .audit =
            [this](v1::AuditEntry entry) {
              entry.set_from(unix_names.Shown(entry.from()));
              audit->Add(std::move(entry));
            },
        .observe_stream = [this](const std::string& method,
                                 int change) { metrics.ObserveStream(method, change); },
        .warning = [this] { return Warning(); }});
  };
  rules = rules_on(*executor);
  agent_rules = rules_on(*agent_calls);
  coordinator_service = std::make_unique<CoordinatorService>(
      CoordinatorService::Parts{.store = *store,
                                .access = *access,
                                .audit = *audit,
                                .control = *control,
                                .fleet = fleet,
                                .nodes = *nodes,
                                .node_control = *node_control,
                                .logs = logs,
                                .stacks = stacks,
                                .dumps = dumps,
                                .profiles = profiles,
                                .hub = hub,
                                .rules = *rules,
                                .files = *files,
                                .slow = *slow,
                                .submitted = [this] { reconciler->Wake(); },
                                .version = [this] { return Version(); },
                                .local_agent = options.local_agent});
  fleet_service = std::make_unique<FleetService>(FleetService::Parts{
      .store = *store,
      .access = *access,
      .fleet = fleet,
      .nodes = *nodes,
      .logs = logs,
      .dumps = dumps,
      .profiles = profiles,
      .hub = hub,
      .rules = *agent_rules,
      .clock = clock,
      .on_heartbeat = [this] { reconciler->Wake(); },
      .recorded =
          [this](const v1::Job& job, int32_t rank, const std::vector<v1::WorkerRecord>& records) {
            metrics.ObserveRecords(job, rank, records);
          },
      .epoch = absl::StrFormat("%x", absl::ToUnixNanos(clock.Wall())),
      .allowed_urls = options.allowed_urls,
      .allowed_roots = options.allowed_roots});
}

absl::Status Server::Parts::StartListening() {
  NSA_ASSIGN_OR_RETURN(
      listening,
      Listen({.tcp_address = options.listen_address,
              .unix_socket = options.unix_socket(),
              .tls = tls,
              .services = {coordinator_service.get(), fleet_service.get()},
              .ping_every = options.ping_every,
              .ping_timeout = options.ping_timeout,
              .ended = [this](const char* reason) { metrics.ObserveConnectionEnd(reason); }}));
  return absl::OkStatus();
}

void Server::Parts::StartProbe(std::function<void()> unreachable) {
  // Over the unix socket, which strangers cannot fill: however many of them press at the TCP port,
  // the coordinator goes on. gate/gate.h protects both, and nsa_tcp_connections_ended_total tells
  // of the port.
  probe = std::make_unique<SelfProbe>(
      SelfProbe::Options{.address = absl::StrCat("unix:", options.unix_socket().string()),
                         .alive = [] { NotifyServiceManager("WATCHDOG=1"); },
                         .unreachable = std::move(unreachable)});
}

void Server::Parts::StartAgent() {
  if (!options.local_agent) return;
  agent = LocalAgent::Start(
      {.program = options.agent_program,
       .state_dir = options.state_dir / "agent",
       .coordinator_address = absl::StrCat("unix:", options.unix_socket().string())},
      clock);
}

absl::Status Server::Parts::StartSlurm() {
  SlurmService::Parts needs{*store, *access, fleet, clock, [this] { reconciler->Wake(); }};
  NSA_ASSIGN_OR_RETURN(slurm, SlurmService::Start(options.slurm, std::move(needs)));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Options& options,
                                                      const Credentials& credentials,
                                                      const Clock& clock,
                                                      std::function<void()> unreachable) {
  NSA_ASSIGN_OR_RETURN(FileLock lock, LockStateDir(options.state_dir));
  NSA_RETURN_IF_ERROR(CheckRestored(options.state_dir));
  NSA_RETURN_IF_ERROR(CheckOpensBeneath(options.state_dir / kStateLockName));
  NSA_ASSIGN_OR_RETURN(std::unique_ptr<AccessStore> access,
                       AccessStore::Open(options.state_dir, clock));
  NSA_ASSIGN_OR_RETURN(std::unique_ptr<AuditLog> audit, AuditLog::Open(options.state_dir, clock));
  NSA_ASSIGN_OR_RETURN(Auth auth, AuthFor(options, credentials, access.get()));
  auto parts = std::make_unique<Parts>(options, credentials.tls, clock, std::move(lock),
                                       std::move(access), std::move(audit), std::move(auth));
  NSA_RETURN_IF_ERROR(parts->OpenStore());
  parts->ShowCertificates();
  parts->MakeReconciler();
  parts->MakeWeb();
  parts->MakeServices();
  NSA_RETURN_IF_ERROR(parts->StartListening());
  // Started after gRPC: if the gRPC port is taken, no HTTP server has to be stopped, which takes
  // two seconds.
  NSA_RETURN_IF_ERROR(parts->StartMetrics());
  NSA_RETURN_IF_ERROR(parts->StartSlurm());
  parts->StartNotifier();
  parts->listening.server->GetHealthCheckService()->SetServingStatus(true);
  parts->serving = true;
  parts->reconciler->Start();
  parts->StartProbe(std::move(unreachable));
  parts->StartAgent();
  return std::unique_ptr<Server>(new Server(std::move(parts)));
}

Server::Server(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Server::~Server() {
  Drain(absl::ZeroDuration());
  // Their threads use every other part.
  parts_->metrics_http.reset();
}

void Server::Drain(absl::Duration patience) {
  if (!std::exchange(parts_->running, false)) return;
  parts_->serving = false;
  parts_->agent.reset();
  parts_->slurm.reset();
  parts_->probe.reset();
  parts_->listening.server->GetHealthCheckService()->SetServingStatus(false);
  // Streams do not end by themselves: they are asked to end, and those that do not are cancelled.
  parts_->draining = true;
  parts_->hub.PublishAll();
  parts_->listening.unix_socket->StopAccepting();
  if (parts_->listening.tcp != nullptr) parts_->listening.tcp->StopAccepting();
  parts_->listening.server->Shutdown(std::chrono::system_clock::now() +
                                     absl::ToChronoNanoseconds(patience));
  parts_->listening.server->Wait();
  parts_->reconciler->Stop();
  if (parts_->notifier != nullptr) parts_->notifier->Stop();
}

const std::string& Server::listen_address() const { return parts_->listening.tcp_address; }

const std::string& Server::metrics_address() const { return parts_->HttpAddress(); }

std::string Server::http_url() const { return parts_->HttpUrl(); }

}  // namespace nsa::server
