#include "server/rpc/fleet_service.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "common/base/clean_text.h"
#include "common/base/count.h"
#include "common/base/limits.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/rpc/secret.h"
#include "server/act/desired.h"
#include "server/decide/allocation/allocation.h"
#include "server/decide/homes.h"
#include "server/decide/job_event.h"
#include "server/rpc/heartbeat_limits.h"
#include "server/store/cut_texts.h"
#include "spdlog/spdlog.h"

namespace nsa::server {
namespace {

constexpr size_t kHashBytes = 32;
// gRPC sends 16 MiB in one answer; one that is larger would not arrive, and the machine be lost.
constexpr size_t kDesiredBytes = 12 << 20;

// Leaves out what would make the answer to a heartbeat larger, of the ranks that the machine does
// not have yet: one that it has would be ended. They fail like ranks that do not start. `added` is
// what each will still be given.
void LeaveOutBeyond(size_t most, size_t added, const v1::HeartbeatRequest& request,
                    std::vector<v1::WorkerAssignment>* desired) {
  const auto size = [added](const v1::WorkerAssignment& each) {
    return each.ByteSizeLong() + added;
  };
  size_t all = 0;
  for (const v1::WorkerAssignment& assignment : *desired) all += size(assignment);
  if (all <= most) return;
  std::set<std::tuple<std::string_view, int64_t, int32_t>> there;
  for (const v1::WorkerObservation& worker : request.workers()) {
    there.emplace(worker.job_id(), worker.generation(), worker.rank());
  }
  auto left_out = std::stable_partition(
      desired->begin(), desired->end(), [&there](const v1::WorkerAssignment& each) {
        return there.contains({each.job_id(), each.generation(), each.rank()});
      });
  size_t bytes = 0;
  for (auto one = desired->begin(); one != left_out; ++one) bytes += size(*one);
  while (left_out != desired->end() && (bytes += size(*left_out)) <= most) ++left_out;
  desired->erase(left_out, desired->end());
}

}  // namespace

FleetService::FleetService(Parts parts)
    : parts_(std::move(parts)), unknown_(parts_.store, parts_.clock), gate_(parts_.rules) {
  const Methods<FleetService> methods("FleetService", &gate_, this,
                                      [this](int index, grpc::internal::MethodHandler* handler) {
                                        MarkMethodCallback(index, handler);
                                      });
  methods.Unary("Join", &FleetService::Admit, &v1::JoinRequest::node);
  methods.Unary("Heartbeat", &FleetService::Answer);
  methods.Unary("ReportRecords", &FleetService::Take);
  methods.Unary("ReportLog", &FleetService::TakeLog);
  methods.Unary("ReportDump", &FleetService::TakeDump);
  methods.Unary("ReportProfile", &FleetService::TakeProfile);
}

absl::Status FleetService::CheckSpeaksFor(const Caller& caller, const std::string& node) const {
  if (caller.role == v1::ROLE_AGENT) {
    if (caller.node == node) return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat("node: ", CutText(node, 80), " (the caller is ",
                                                    caller.name, "); only it may say that"));
  }
  if (!parts_.access.HasJoined(node)) return absl::OkStatus();
  return absl::UnauthenticatedError(absl::StrCat(
      "node: ", node,
      " has a secret, which the caller does not have; restart its agent, or revoke the secret with "
      "`nsactl token revoke ",
      node, "`"));
}

absl::Status FleetService::CheckStore(const std::string& store_id) const {
  if (store_id.empty() || store_id == parts_.store.id()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("store: the worker was started under ", store_id,
                                         " (this coordinator has ", parts_.store.id(),
                                         "); keep what it has written"));
}

absl::Status FleetService::CheckAllocation(const v1::NodeInfo& node) const {
  if (node.allocation().empty()) return absl::OkStatus();
  for (const JobPtr& job : parts_.store.Active()) {
    const v1::Allocation& allocation = job->job().allocation();
    if (allocation.id() != node.allocation() || !IsLive(allocation)) continue;
    const std::string prefix = AllocatedNode(allocation, 0);
    if (absl::StartsWith(node.name(), prefix.substr(0, prefix.size() - 1))) return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat("node.allocation: ", node.allocation(), " (",
                                                    node.name(),
                                                    " is none of its machines); remove it"));
  }
  return absl::NotFoundError(
      absl::StrCat("node.allocation: ", node.allocation(), " has ended; end this agent"));
}

absl::Status FleetService::CheckRan(const Caller& caller, const v1::StoredJob& job,
                                    int64_t generation, int32_t rank) const {
  const std::string home = HomeOf(job, generation, rank);
  if (!home.empty()) return CheckSpeaksFor(caller, home);
  return absl::PermissionDeniedError(
      absl::StrFormat("rank %d of job %s (generation %d): unknown node; discard its records", rank,
                      job.job().id(), generation));
}

absl::StatusOr<JobPtr> FleetService::FindFor(const Caller& caller, const std::string& job) const {
  NSA_ASSIGN_OR_RETURN(JobPtr found, parts_.store.Find(job));
  if (caller.role != v1::ROLE_AGENT || HasRunOn(*found, caller.node)) return found;
  return NoSuchJob(job);
}

absl::StatusOr<v1::JoinResponse> FleetService::Admit(const v1::JoinRequest& request,
                                                     const Caller& caller) {
  NSA_RETURN_IF_ERROR(CheckNodeName(request.node()));
  if (request.secret_sha256().size() != kHashBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("secret_sha256: %d bytes (must be %d); send a SHA-256",
                        request.secret_sha256().size(), kHashBytes));
  }
  const bool sent = !request.join_token().empty();
  const bool free =
      !parts_.access.HasJoined(request.node()) || parts_.fleet.IsSilent(request.node());
  const absl::Status joined =
      parts_.access.Join({.node = request.node(),
                          .secret_sha256 = request.secret_sha256(),
                          .join_token_sha256 = sent ? Sha256(request.join_token()) : "",
                          .certificate_name = caller.certificate_name,
                          .trusted = caller.local && free});
  if (absl::IsUnauthenticated(joined) && caller.local && !sent) {
    return absl::FailedPreconditionError(absl::StrCat(
        "node.name: ", request.node(),
        " is also used by another agent, which sends heartbeats; end that one, or give this one "
        "another node_name"));
  }
  NSA_RETURN_IF_ERROR(joined);
  spdlog::info("node {}: joined from {}", request.node(), caller.from);
  return v1::JoinResponse();
}

void FleetService::AddDesired(const v1::HeartbeatRequest& request,
                              v1::HeartbeatResponse* response) {
  const WorkerOf worker_of = std::bind_front(&Fleet::Worker, &parts_.fleet);
  std::vector<v1::WorkerAssignment> desired =
      DesiredOn(request.node().name(), parts_.store.Active(), worker_of, parts_.clock.Wall());
  for (v1::WorkerAssignment& assignment : desired) {
    if (!request.takes_resume_from_step()) MakeForOlderAgent(&assignment);
  }
  v1::WorkerAssignment allowed;
  allowed.mutable_allowed_urls()->Assign(parts_.allowed_urls.begin(), parts_.allowed_urls.end());
  for (const auto& root : parts_.allowed_roots) allowed.add_allowed_roots(root.string());
  LeaveOutBeyond(kDesiredBytes, allowed.ByteSizeLong(), request, &desired);
  for (v1::WorkerAssignment& assignment : desired) {
    assignment.MergeFrom(allowed);
    *response->add_desired() = std::move(assignment);
  }
}

absl::StatusOr<v1::HeartbeatResponse> FleetService::Answer(const v1::HeartbeatRequest& sent,
                                                           const Caller& caller) {
  NSA_RETURN_IF_ERROR(CheckHeartbeat(sent));
  NSA_RETURN_IF_ERROR(CheckSpeaksFor(caller, sent.node().name()));
  // An allocation of another store is not known here, and its machine is to keep its ranks.
  const bool other_store = unknown_.AreOfAnotherStore(sent);
  if (!other_store) NSA_RETURN_IF_ERROR(CheckAllocation(sent.node()));
  v1::HeartbeatRequest request = sent;
  for (v1::GpuInfo& gpu : *request.mutable_node()->mutable_gpus()) {
    CutTexts(&gpu, limits::kReportedWordBytes);  // there may be 64, and each page has them
  }
  CutTexts(&request, limits::kReportedTextBytes);
  const std::string& node = request.node().name();
  const absl::Status observed = parts_.fleet.Observe(request, other_store);
  if (absl::IsFailedPrecondition(observed) &&
      parts_.fleet.NoteRefusal(node, request.incarnation())) {
    spdlog::warn("node {}: heartbeats from {} are refused: {}", node, caller.from,
                 std::string(observed.message()));
  }
  NSA_RETURN_IF_ERROR(observed);
  v1::HeartbeatResponse response;
  response.set_epoch(parts_.epoch);
  response.set_store_id(parts_.store.id());
  unknown_.Answer(request, other_store ? parts_.nodes.All() : Cordons(), &response);
  if (other_store) return response;
  AddDesired(request, &response);
  for (v1::DumpRequest& dump : parts_.dumps.Wanted(node)) *response.add_dumps() = std::move(dump);
  for (v1::ProfileOrder& order : parts_.profiles.Wanted(node)) {
    *response.add_profiles() = std::move(order);
  }
  parts_.on_heartbeat();
  std::set<std::string> jobs;
  for (const v1::WorkerObservation& worker : request.workers()) jobs.insert(worker.job_id());
  for (const std::string& job : jobs) parts_.hub.Publish(job);
  return response;
}

absl::StatusOr<v1::ReportRecordsResponse> FleetService::Take(
    const v1::ReportRecordsRequest& request, const Caller& caller) {
  NSA_RETURN_IF_ERROR(CheckStore(request.store_id()));
  NSA_ASSIGN_OR_RETURN(const JobPtr job, FindFor(caller, request.job_id()));
  NSA_RETURN_IF_ERROR(CheckPlace(request, job->job()));
  NSA_RETURN_IF_ERROR(CheckRan(caller, *job, request.generation(), request.rank()));
  // The curve is that of rank 0.
  const bool drawn = request.rank() == 0 && request.records_size() > 0;
  NSA_ASSIGN_OR_RETURN(const JobStore::Appended appended,
                       parts_.store.AppendRecords(request, drawn ? parts_.fleet.GpusOf(*job)
                                                                 : std::vector<v1::GpuInfo>()));
  if (appended.current && !appended.fresh.empty()) {
    parts_.recorded(appended.job->job(), request.rank(), appended.fresh);
  }
  v1::ReportRecordsResponse response;
  response.set_next_sequence(appended.next_sequence);
  return response;
}

void FleetService::NoteLog(const v1::ReportLogRequest& request, Reason reason,
                           const std::string& text) {
  const auto note = [&](v1::StoredJob*, std::vector<v1::JobEvent>* events) {
    const bool restored = reason == Reason::kTelemetryRestored;
    events->push_back(
        EventOf(reason, text, restored ? v1::SEVERITY_INFO : v1::SEVERITY_WARNING, request.rank()));
    return absl::OkStatus();
  };
  const auto noted = parts_.store.Update(request.job_id(), note);
  if (!noted.ok()) {
    spdlog::warn("job {}: {}", request.job_id(), std::string(noted.status().message()));
  }
}

absl::StatusOr<v1::ReportLogResponse> FleetService::TakeLog(const v1::ReportLogRequest& request,
                                                            const Caller& caller) {
  NSA_RETURN_IF_ERROR(CheckStore(request.store_id()));
  NSA_ASSIGN_OR_RETURN(const JobPtr job, FindFor(caller, request.job_id()));
  const std::string& id = job->job().id();
  const int32_t ranks = job->job().spec().resources().gpus();
  if (request.rank() < 0 || request.rank() >= ranks || request.generation() < 1 ||
      request.generation() > job->job().generation()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "rank: %d of generation %d (job %s has %s and is at generation %d); "
        "drop this log",
        request.rank(), request.generation(), id, Count(ranks, "rank"), job->job().generation()));
  }
  NSA_RETURN_IF_ERROR(CheckRan(caller, *job, request.generation(), request.rank()));
  const absl::StatusOr<LogStore::Appended> appended = parts_.logs.Append(
      id, request.generation(), request.rank(), request.offset(), request.data());
  const bool news = parts_.logs.SetWritten(id, request.rank(), appended.ok());
  if (!appended.ok()) {
    if (news) {
      NoteLog(request, Reason::kTelemetryFailed,
              absl::StrCat("the log of rank ", request.rank(),
                           " cannot be stored: ", std::string(appended.status().message()),
                           "; what is missing is lost a minute after the rank has ended"));
    }
    return appended.status();
  }
  // The job was deleted meanwhile, and Append() has created its log folder again.
  if (const auto still = parts_.store.Find(id); !still.ok()) {
    parts_.logs.Remove(id).IgnoreError();
    return still.status();
  }
  if (news) {
    NoteLog(request, Reason::kTelemetryRestored,
            absl::StrCat("the log of rank ", request.rank(), " is stored again"));
  }
  if (appended->quota_reached) {
    NoteLog(request, Reason::kLogQuota,
            absl::StrFormat("the oldest log lines of rank %d are dropped", request.rank()));
  }
  parts_.hub.Publish(id);
  v1::ReportLogResponse response;
  response.set_next_offset(appended->next_offset);
  return response;
}

absl::StatusOr<v1::ReportDumpResponse> FleetService::TakeDump(const v1::ReportDumpRequest& request,
                                                              const Caller& caller) {
  NSA_RETURN_IF_ERROR(CheckSpeaksFor(caller, request.node()));
  NSA_RETURN_IF_ERROR(parts_.dumps.Report(request));
  return v1::ReportDumpResponse();
}

absl::StatusOr<v1::ReportProfileResponse> FleetService::TakeProfile(
    const v1::ReportProfileRequest& request, const Caller& caller) {
  const std::string node = parts_.profiles.NodeOf(request.profile_id(), request.rank());
  // Nobody waits for it any more: the broker says so.
  if (!node.empty()) NSA_RETURN_IF_ERROR(CheckSpeaksFor(caller, node));
  return parts_.profiles.Report(request);
}

}  // namespace nsa::server
