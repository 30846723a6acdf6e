#include "server/rpc/coordinator_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "server/act/checkpoints.h"
#include "server/decide/lifecycle.h"
#include "server/rpc/watch.h"
#include "server/watch/nodes_view.h"

namespace nsa::server {
namespace {

// An agent receives a dump request with its next heartbeat reply, and the caller expects an answer
// within 5 s.
constexpr absl::Duration kDumpPatience = absl::Milliseconds(4'700);

// Puts a job into a reply that has no other field.
template <typename Response>
absl::StatusOr<Response> Wrap(absl::StatusOr<v1::Job> job) {
  if (!job.ok()) return job.status();
  Response response;
  *response.mutable_job() = *std::move(job);
  return response;
}

}  // namespace

CoordinatorService::Unary* CoordinatorService::SubmitJob(Context* context,
                                                         const v1::SubmitJobRequest* request,
                                                         v1::SubmitJobResponse* response) {
  const UnaryCall call(context, parts_.rules, "SubmitJob");
  return call.RunOn<v1::SubmitJobResponse>(parts_.files, response, [this, call, request] {
    auto submitted = parts_.control.Submit(*request, [call] { return call.Abandoned(); });
    if (submitted.ok()) parts_.submitted();
    return submitted;
  });
}

CoordinatorService::Unary* CoordinatorService::GetJob(Context* context,
                                                      const v1::GetJobRequest* request,
                                                      v1::GetJobResponse* response) {
  return UnaryCall(context, parts_.rules, "GetJob").Run<v1::GetJobResponse>(response, [=, this] {
    return Wrap<v1::GetJobResponse>(parts_.control.Get(request->job()));
  });
}

CoordinatorService::Unary* CoordinatorService::ListJobs(Context* context,
                                                        const v1::ListJobsRequest* request,
                                                        v1::ListJobsResponse* response) {
  return UnaryCall(context, parts_.rules, "ListJobs")
      .Run<v1::ListJobsResponse>(response, [=, this] { return parts_.control.List(*request); });
}

CoordinatorService::Unary* CoordinatorService::StopJob(Context* context,
                                                       const v1::StopJobRequest* request,
                                                       v1::StopJobResponse* response) {
  return UnaryCall(context, parts_.rules, "StopJob").Run<v1::StopJobResponse>(response, [=, this] {
    auto stopped = Wrap<v1::StopJobResponse>(parts_.control.Stop(*request));
    if (stopped.ok()) parts_.submitted();
    return stopped;
  });
}

CoordinatorService::Unary* CoordinatorService::ResumeJob(Context* context,
                                                         const v1::ResumeJobRequest* request,
                                                         v1::ResumeJobResponse* response) {
  return UnaryCall(context, parts_.rules, "ResumeJob")
      .Run<v1::ResumeJobResponse>(response, [=, this] {
        auto resumed = Wrap<v1::ResumeJobResponse>(parts_.control.Resume(*request));
        if (resumed.ok()) parts_.submitted();
        return resumed;
      });
}

CoordinatorService::Unary* CoordinatorService::DeleteJob(Context* context,
                                                         const v1::DeleteJobRequest* request,
                                                         v1::DeleteJobResponse* response) {
  return UnaryCall(context, parts_.rules, "DeleteJob")
      .Run<v1::DeleteJobResponse>(
          response, [=, this] { return parts_.control.Delete(*request, context->peer()); });
}

// Starts a stream about one job, or about all when `job` is empty. Nothing is looked up for a
// caller without the token. Making the source may read from the disk, so its first call does it.
template <typename Response>
CoordinatorService::Writer<Response>* CoordinatorService::StartStream(
    Context* context, const char* method, const std::string& job,
    std::function<absl::StatusOr<Source<Response>>(std::string)> make) {
  if (const absl::Status allowed = parts_.rules.auth.Check(*context); !allowed.ok()) {
    return Stream<Response>::Refuse(parts_.rules, method, allowed);
  }
  std::string id;
  if (!job.empty()) {
    const absl::StatusOr<JobPtr> found = parts_.store.Find(job);
    if (!found.ok()) return Stream<Response>::Refuse(parts_.rules, method, found.status());
    id = (*found)->job().id();
  }
  auto source = std::make_shared<Source<Response>>();
  return Stream<Response>::Start(
      parts_.rules, method, &parts_.hub, id,
      [id, source, make = std::move(make)]() -> absl::StatusOr<std::optional<Response>> {
        if (*source == nullptr) {
          NSA_ASSIGN_OR_RETURN(*source, make(id));
        }
        return (*source)();
      });
}

CoordinatorService::Writer<v1::WatchJobResponse>* CoordinatorService::WatchJob(
    Context* context, const v1::WatchJobRequest* request) {
  return StartStream<v1::WatchJobResponse>(
      context, "WatchJob", request->job(),
      [this](std::string id) -> absl::StatusOr<Source<v1::WatchJobResponse>> {
        if (id.empty()) return absl::InvalidArgumentError("job: empty; name one");
        return WatchJobSource(parts_.store, parts_.control, std::move(id));
      });
}

CoordinatorService::Writer<v1::WatchEventsResponse>* CoordinatorService::WatchEvents(
    Context* context, const v1::WatchEventsRequest* request) {
  return StartStream<v1::WatchEventsResponse>(
      context, "WatchEvents", request->job(), [this, request = *request](std::string id) {
        return EventSource(parts_.store, request, std::move(id));
      });
}

CoordinatorService::Writer<v1::WatchRecordsResponse>* CoordinatorService::WatchRecords(
    Context* context, const v1::WatchRecordsRequest* request) {
  return StartStream<v1::WatchRecordsResponse>(
      context, "WatchRecords", request->job(),
      [this,
       request = *request](std::string id) -> absl::StatusOr<Source<v1::WatchRecordsResponse>> {
        if (id.empty()) return absl::InvalidArgumentError("job: empty; name one");
        return RecordSource(parts_.store, request, std::move(id));
      });
}

CoordinatorService::Writer<v1::StreamLogsResponse>* CoordinatorService::StreamLogs(
    Context* context, const v1::StreamLogsRequest* request) {
  return StartStream<v1::StreamLogsResponse>(
      context, "StreamLogs", request->job(),
      [this, request = *request](std::string id) -> absl::StatusOr<Source<v1::StreamLogsResponse>> {
        if (id.empty()) return absl::InvalidArgumentError("job: empty; name one");
        return LogSource(parts_.store, &parts_.logs, request, std::move(id));
      });
}

absl::StatusOr<std::vector<v1::RankPlacement>> CoordinatorService::RanksToDump(
    const v1::DumpStackRequest& request, JobPtr* job) const {
  NSA_ASSIGN_OR_RETURN(*job, parts_.store.Find(request.job()));
  const v1::StoredJob& stored = **job;
  NSA_RETURN_IF_ERROR(CheckRank(request.rank(), stored.job()));
  if (!HasGang(stored.job().state()) || stored.restart_decided()) {
    return absl::FailedPreconditionError(absl::StrCat("state: job ", stored.job().id(), " is ",
                                                      StateName(stored.job().state()),
                                                      " and has no processes; nothing to dump"));
  }
  std::vector<v1::RankPlacement> ranks;
  for (const v1::RankPlacement& place : stored.placements()) {
    if (request.rank() < 0 || request.rank() == place.rank()) ranks.push_back(place);
  }
  if (ranks.empty()) {
    return absl::NotFoundError(absl::StrFormat("rank: %d (job %s has %d placed); try again",
                                               request.rank(), stored.job().id(),
                                               stored.placements_size()));
  }
  return ranks;
}

CoordinatorService::Unary* CoordinatorService::DumpStack(Context* context,
                                                         const v1::DumpStackRequest* request,
                                                         v1::DumpStackResponse* response) {
  const UnaryCall call(context, parts_.rules, "DumpStack");
  JobPtr job;
  const auto ranks = [&]() -> absl::StatusOr<std::vector<v1::RankPlacement>> {
    NSA_RETURN_IF_ERROR(parts_.rules.auth.Check(*context));
    return RanksToDump(*request, &job);
  }();
  if (!ranks.ok()) {
    call.Finish(ranks.status());
    return call.reactor();
  }
  parts_.dumps.Request(job->job(), *ranks, kDumpPatience,
                       [call, response](std::vector<v1::StackDump> dumps) {
                         response->mutable_dumps()->Assign(dumps.begin(), dumps.end());
                         call.Finish(absl::OkStatus());
                       });
  return call.reactor();
}

CoordinatorService::Unary* CoordinatorService::ListSavedStacks(
    Context* context, const v1::ListSavedStacksRequest* request,
    v1::ListSavedStacksResponse* response) {
  return UnaryCall(context, parts_.rules, "ListSavedStacks")
      .Run<v1::ListSavedStacksResponse>(
          response, [=, this]() -> absl::StatusOr<v1::ListSavedStacksResponse> {
            NSA_ASSIGN_OR_RETURN(const JobPtr job, parts_.store.Find(request->job()));
            v1::ListSavedStacksResponse list;
            const auto saved = parts_.stacks.List(job->job().id());
            list.mutable_saved()->Assign(saved.begin(), saved.end());
            return list;
          });
}

CoordinatorService::Unary* CoordinatorService::GetSavedStacks(
    Context* context, const v1::GetSavedStacksRequest* request,
    v1::GetSavedStacksResponse* response) {
  return UnaryCall(context, parts_.rules, "GetSavedStacks")
      .Run<v1::GetSavedStacksResponse>(
          response, [=, this]() -> absl::StatusOr<v1::GetSavedStacksResponse> {
            NSA_ASSIGN_OR_RETURN(const JobPtr job, parts_.store.Find(request->job()));
            return parts_.stacks.Read(job->job().id(), request->id());
          });
}

CoordinatorService::Unary* CoordinatorService::ListCheckpoints(
    Context* context, const v1::ListCheckpointsRequest* request,
    v1::ListCheckpointsResponse* response) {
  return UnaryCall(context, parts_.rules, "ListCheckpoints")
      .RunOn<v1::ListCheckpointsResponse>(
          parts_.files, response, [=, this]() -> absl::StatusOr<v1::ListCheckpointsResponse> {
            NSA_ASSIGN_OR_RETURN(const std::string out_dir, parts_.control.OutDir(request->job()));
            return CheckpointsOf(out_dir);
          });
}

CoordinatorService::Unary* CoordinatorService::VerifyCheckpoint(
    Context* context, const v1::VerifyCheckpointRequest* request,
    v1::VerifyCheckpointResponse* response) {
  const UnaryCall call(context, parts_.rules, "VerifyCheckpoint");
  return call.RunOn<v1::VerifyCheckpointResponse>(
      parts_.slow, response, [=, this]() -> absl::StatusOr<v1::VerifyCheckpointResponse> {
        NSA_ASSIGN_OR_RETURN(const std::string out_dir, parts_.control.OutDir(request->job()));
        return Verify(out_dir, request->step(), [call] { return call.Abandoned(); });
      });
}

CoordinatorService::Unary* CoordinatorService::ListNodes(Context* context,
                                                         const v1::ListNodesRequest*,
                                                         v1::ListNodesResponse* response) {
  return UnaryCall(context, parts_.rules, "ListNodes")
      .Run<v1::ListNodesResponse>(response, [this]() -> absl::StatusOr<v1::ListNodesResponse> {
        v1::ListNodesResponse nodes = NodesView(parts_.fleet.Nodes(), parts_.store.Active());
        nodes.set_local_agent(parts_.local_agent);
        return nodes;
      });
}

CoordinatorService::Unary* CoordinatorService::GetVersion(Context* context,
                                                          const v1::GetVersionRequest*,
                                                          v1::GetVersionResponse* response) {
  return UnaryCall(context, parts_.rules, "GetVersion")
      .Run<v1::GetVersionResponse>(response, [this]() -> absl::StatusOr<v1::GetVersionResponse> {
        return parts_.version();
      });
}

}  // namespace nsa::server
