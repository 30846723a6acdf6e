#include "server/rpc/fleet_service.h"

#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/count.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "server/act/desired.h"
#include "spdlog/spdlog.h"

namespace nsa::server {

FleetService::Unary* FleetService::Heartbeat(Context* context, const v1::HeartbeatRequest* request,
                                             v1::HeartbeatResponse* response) {
  return UnaryCall(context, parts_.rules, "Heartbeat")
      .Run<v1::HeartbeatResponse>(response, [=, this] { return Answer(*request); });
}

absl::StatusOr<v1::HeartbeatResponse> FleetService::Answer(const v1::HeartbeatRequest& request) {
  NSA_RETURN_IF_ERROR(parts_.fleet.Observe(request));
  const std::string& node = request.node().name();
  v1::HeartbeatResponse response;
  response.set_epoch(parts_.epoch);
  for (v1::WorkerAssignment& assignment : DesiredOn(node, parts_.store.Active())) {
    *response.add_desired() = std::move(assignment);
  }
  for (v1::DumpRequest& dump : parts_.dumps.Wanted(node)) *response.add_dumps() = std::move(dump);
  parts_.on_heartbeat();
  std::set<std::string> jobs;
  for (const v1::WorkerObservation& worker : request.workers()) jobs.insert(worker.job_id());
  for (const std::string& job : jobs) parts_.hub.Publish(job);
  return response;
}

FleetService::Unary* FleetService::ReportRecords(Context* context,
                                                 const v1::ReportRecordsRequest* request,
                                                 v1::ReportRecordsResponse* response) {
  return UnaryCall(context, parts_.rules, "ReportRecords")
      .Run<v1::ReportRecordsResponse>(response, [=, this] { return Take(*request); });
}

absl::StatusOr<v1::ReportRecordsResponse> FleetService::Take(
    const v1::ReportRecordsRequest& request) {
  NSA_ASSIGN_OR_RETURN(const JobStore::Appended appended, parts_.store.AppendRecords(request));
  if (appended.current && !appended.fresh.empty()) {
    parts_.recorded(appended.job->job(), request.rank(), appended.fresh);
  }
  v1::ReportRecordsResponse response;
  response.set_next_sequence(appended.next_sequence);
  return response;
}

FleetService::Unary* FleetService::ReportLog(Context* context, const v1::ReportLogRequest* request,
                                             v1::ReportLogResponse* response) {
  return UnaryCall(context, parts_.rules, "ReportLog")
      .Run<v1::ReportLogResponse>(response, [=, this] { return TakeLog(*request); });
}

absl::StatusOr<v1::ReportLogResponse> FleetService::TakeLog(const v1::ReportLogRequest& request) {
  NSA_ASSIGN_OR_RETURN(const JobPtr job, parts_.store.Find(request.job_id()));
  const std::string& id = job->job().id();
  const int32_t ranks = job->job().spec().resources().gpus();
  if (request.rank() < 0 || request.rank() >= ranks || request.generation() < 1 ||
      request.generation() > job->job().generation()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "rank: %d of generation %d (job %s has %s and is at generation %d); "
        "drop this log",
        request.rank(), request.generation(), id, Count(ranks, "rank"), job->job().generation()));
  }
  NSA_ASSIGN_OR_RETURN(const LogStore::Appended appended,
                       parts_.logs.Append(id, request.generation(), request.rank(),
                                          request.offset(), request.data()));
  // The job was deleted meanwhile, and Append() has created its log folder again.
  if (const auto still = parts_.store.Find(id); !still.ok()) {
    parts_.logs.Remove(id).IgnoreError();
    return still.status();
  }
  if (appended.quota_reached) {
    const auto note = [&](v1::StoredJob*, std::vector<v1::JobEvent>* events) {
      v1::JobEvent& event = events->emplace_back();
      event.set_reason(Word(Reason::kLogQuota));
      event.set_text(
          absl::StrFormat("the oldest log lines of rank %d are dropped", request.rank()));
      event.set_severity(v1::SEVERITY_WARNING);
      event.set_rank(request.rank());
      return absl::OkStatus();
    };
    const auto noted = parts_.store.Update(id, note);
    if (!noted.ok()) spdlog::warn("job {}: {}", id, std::string(noted.status().message()));
  }
  parts_.hub.Publish(id);
  v1::ReportLogResponse response;
  response.set_next_offset(appended.next_offset);
  return response;
}

FleetService::Unary* FleetService::ReportDump(Context* context,
                                              const v1::ReportDumpRequest* request,
                                              v1::ReportDumpResponse* response) {
  return UnaryCall(context, parts_.rules, "ReportDump")
      .Run<v1::ReportDumpResponse>(response, [=, this]() -> absl::StatusOr<v1::ReportDumpResponse> {
        NSA_RETURN_IF_ERROR(parts_.dumps.Report(*request));
        return v1::ReportDumpResponse();
      });
}

}  // namespace nsa::server
