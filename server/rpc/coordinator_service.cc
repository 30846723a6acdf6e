#include "server/rpc/coordinator_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clean_text.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/estimate/state_title.h"
#include "common/job/known.h"
#include "server/act/checkpoints.h"
#include "server/act/edit/edit_job.h"
#include "server/act/profile/profile_job.h"
#include "server/decide/lifecycle.h"
#include "server/rpc/tokens.h"
#include "server/rpc/watch.h"
#include "server/watch/curves_view.h"
#include "server/watch/nodes_view.h"
#include "server/watch/veil.h"

namespace nsa::server {
namespace {

// An agent receives a dump request with its next heartbeat reply, and the caller expects an answer
// within 5 s.
constexpr absl::Duration kDumpPatience = absl::Milliseconds(4'700);
constexpr int32_t kProfileSteps = 3;  // when the caller names no number

// Puts a job into a reply that has no other field.
template <typename Response>
absl::StatusOr<Response> Wrap(absl::StatusOr<v1::Job> job) {
  if (!job.ok()) return job.status();
  Response response;
  *response.mutable_job() = *std::move(job);
  return response;
}

Asker AskerOf(const Caller& caller) {
  return {caller.name, caller.role == v1::ROLE_SUBMITTER, caller.unix_user};
}

}  // namespace

CoordinatorService::CoordinatorService(Parts parts)
    : parts_(std::move(parts)), gate_(parts_.rules) {
  using This = CoordinatorService;
  const auto limit = Limiter(&gate_, this, "CoordinatorService", [this](int index, auto* handler) {
    MarkMethodCallback(index, handler);
  });
  limit("SubmitJob", &This::SubmitJob);
  limit("GetJob", &This::GetJob);
  limit("ListJobs", &This::ListJobs);
  limit("WatchJob", &This::WatchJob);
  limit("WatchEvents", &This::WatchEvents);
  limit("WatchRecords", &This::WatchRecords);
  limit("GetCurves", &This::GetCurves);
  limit("StreamLogs", &This::StreamLogs);
  limit("StopJob", &This::StopJob);
  limit("ResumeJob", &This::ResumeJob);
  limit("DeleteJob", &This::DeleteJob);
  limit("EditJob", &This::EditJob);
  limit("DumpStack", &This::DumpStack);
  limit("ProfileJob", &This::ProfileJob);
  limit("ListSavedStacks", &This::ListSavedStacks);
  limit("GetSavedStacks", &This::GetSavedStacks);
  limit("ListCheckpoints", &This::ListCheckpoints);
  limit("VerifyCheckpoint", &This::VerifyCheckpoint);
  limit("ListNodes", &This::ListNodes);
  limit("CordonNode", &This::CordonNode);
  limit("UncordonNode", &This::UncordonNode);
  limit("GetVersion", &This::GetVersion);
  limit("CreateToken", &This::CreateToken);
  limit("ListTokens", &This::ListTokens);
  limit("RotateToken", &This::RotateToken);
  limit("RevokeToken", &This::RevokeToken);
  limit("ListAudit", &This::ListAudit);
  limit("ListUse", &This::ListUse);
}

CoordinatorService::Unary* CoordinatorService::SubmitJob(Context* context,
                                                         const v1::SubmitJobRequest* request,
                                                         v1::SubmitJobResponse* response) {
  std::optional<std::string> subject;
  if (!request->validate_only()) subject = request->spec().name();
  const UnaryCall call(context, parts_.rules, "SubmitJob", std::move(subject));
  const auto submit = [this, call, request](const Caller& caller) {
    auto submitted = parts_.control.Submit(
        *request, [call] { return call.Abandoned(); }, AskerOf(caller));
    if (submitted.ok()) parts_.submitted();
    return submitted;
  };
  return call.RunOn<v1::SubmitJobResponse>(parts_.files, response, submit);
}

CoordinatorService::Unary* CoordinatorService::GetJob(Context* context,
                                                      const v1::GetJobRequest* request,
                                                      v1::GetJobResponse* response) {
  return UnaryCall(context, parts_.rules, "GetJob")
      .Run<v1::GetJobResponse>(
          response, [=, this](const Caller& caller) -> absl::StatusOr<v1::GetJobResponse> {
            NSA_RETURN_IF_ERROR(CheckKnownValues(*request, "request"));
            const Asker asker = AskerOf(caller);
            v1::GetJobResponse found;
            NSA_ASSIGN_OR_RETURN(*found.mutable_job(),
                                 parts_.control.Get(request->job(), asker, request->use()));
            found.set_namesakes(parts_.store.Namesakes(request->job(), asker.only()));
            return found;
          });
}

CoordinatorService::Unary* CoordinatorService::ListJobs(Context* context,
                                                        const v1::ListJobsRequest* request,
                                                        v1::ListJobsResponse* response) {
  return UnaryCall(context, parts_.rules, "ListJobs")
      .Run<v1::ListJobsResponse>(response, [=, this](const Caller& caller) {
        return parts_.control.List(*request, AskerOf(caller));
      });
}

CoordinatorService::Unary* CoordinatorService::StopJob(Context* context,
                                                       const v1::StopJobRequest* request,
                                                       v1::StopJobResponse* response) {
  return UnaryCall(context, parts_.rules, "StopJob", request->job())
      .Run<v1::StopJobResponse>(response, [=, this](const Caller& caller) {
        auto stopped = Wrap<v1::StopJobResponse>(parts_.control.Stop(*request, AskerOf(caller)));
        if (stopped.ok()) parts_.submitted();
        return stopped;
      });
}

CoordinatorService::Unary* CoordinatorService::ResumeJob(Context* context,
                                                         const v1::ResumeJobRequest* request,
                                                         v1::ResumeJobResponse* response) {
  const UnaryCall call(context, parts_.rules, "ResumeJob", request->job());
  const auto resume = [=, this](const Caller& caller) {
    auto resumed = Wrap<v1::ResumeJobResponse>(
        parts_.control.Resume(*request, AskerOf(caller), [call] { return call.Abandoned(); }));
    if (resumed.ok()) parts_.submitted();
    return resumed;
  };
  // Another spec is checked by preflight, which reads files.
  if (request->has_spec()) return call.RunOn<v1::ResumeJobResponse>(parts_.files, response, resume);
  return call.Run<v1::ResumeJobResponse>(response, resume);
}

CoordinatorService::Unary* CoordinatorService::DeleteJob(Context* context,
                                                         const v1::DeleteJobRequest* request,
                                                         v1::DeleteJobResponse* response) {
  const UnaryCall call(context, parts_.rules, "DeleteJob", request->job());
  return call.RunOn<v1::DeleteJobResponse>(parts_.files, response, [=, this](const Caller& caller) {
    return parts_.control.Delete(*request, OriginOf(*context), AskerOf(caller));
  });
}

CoordinatorService::Unary* CoordinatorService::EditJob(Context* context,
                                                       const v1::EditJobRequest* request,
                                                       v1::EditJobResponse* response) {
  return UnaryCall(context, parts_.rules, "EditJob", request->job())
      .Run<v1::EditJobResponse>(
          response, [=, this](const Caller& caller) -> absl::StatusOr<v1::EditJobResponse> {
            const auto job =
                server::EditJob(parts_.store, *request, caller.name, AskerOf(caller).only());
            if (!job.ok()) return Veiled(job.status(), parts_.store, AskerOf(caller).only());
            v1::EditJobResponse edited;
            *edited.mutable_job() = parts_.control.View(**job);
            return edited;
          });
}

// Starts a stream about one job, or about all when `job` is empty. Nothing is looked up for a
// caller without the token. Making the source may read from the disk, so its first call does it.
template <typename Response>
CoordinatorService::Writer<Response>* CoordinatorService::StartStream(Context* context,
                                                                      const char* method,
                                                                      const std::string& job,
                                                                      MakeSource<Response> make) {
  const auto caller = parts_.rules.auth.Check(*context, method);
  if (!caller.ok()) return Stream<Response>::Refuse(parts_.rules, method, caller.status());
  const std::string only = AskerOf(*caller).only();
  // Searched on the executor: the store's lock may be held over a commit.
  auto id = std::make_shared<std::string>();
  auto source = std::make_shared<Source<Response>>();
  return Stream<Response>::Start(
      parts_.rules, method, &parts_.hub,
      [this, job, only, id]() -> absl::StatusOr<std::string> {
        if (job.empty()) return std::string();
        NSA_ASSIGN_OR_RETURN(const JobPtr found, parts_.store.Find(job, only));
        *id = found->job().id();
        return *id;
      },
      [id, only, source, make = std::move(make)]() -> absl::StatusOr<std::optional<Response>> {
        if (*source == nullptr) {
          NSA_ASSIGN_OR_RETURN(*source, make(*id, only));
        }
        return (*source)();
      });
}

CoordinatorService::Writer<v1::WatchJobResponse>* CoordinatorService::WatchJob(
    Context* context, const v1::WatchJobRequest* request) {
  return StartStream<v1::WatchJobResponse>(
      context, "WatchJob", request->job(),
      [this](std::string id, const std::string&) -> absl::StatusOr<Source<v1::WatchJobResponse>> {
        if (id.empty()) return absl::InvalidArgumentError("job: empty; name one");
        return WatchJobSource(parts_.store, parts_.control, std::move(id));
      });
}

CoordinatorService::Writer<v1::WatchEventsResponse>* CoordinatorService::WatchEvents(
    Context* context, const v1::WatchEventsRequest* request) {
  return StartStream<v1::WatchEventsResponse>(
      context, "WatchEvents", request->job(),
      [this, request = *request](std::string id, const std::string& only) {
        return EventSource(parts_.store, request, std::move(id), only);
      });
}

CoordinatorService::Writer<v1::WatchRecordsResponse>* CoordinatorService::WatchRecords(
    Context* context, const v1::WatchRecordsRequest* request) {
  return StartStream<v1::WatchRecordsResponse>(
      context, "WatchRecords", request->job(),
      [this, request = *request](
          std::string id, const std::string&) -> absl::StatusOr<Source<v1::WatchRecordsResponse>> {
        if (id.empty()) return absl::InvalidArgumentError("job: empty; name one");
        return RecordSource(parts_.store, request, std::move(id));
      });
}

CoordinatorService::Unary* CoordinatorService::GetCurves(Context* context,
                                                         const v1::GetCurvesRequest* request,
                                                         v1::GetCurvesResponse* response) {
  return UnaryCall(context, parts_.rules, "GetCurves")
      .Run<v1::GetCurvesResponse>(
          response, [=, this](const Caller& caller) -> absl::StatusOr<v1::GetCurvesResponse> {
            NSA_ASSIGN_OR_RETURN(const JobPtr job,
                                 parts_.store.Find(request->job(), AskerOf(caller).only()));
            return CurvesOf(parts_.store, job->job().id(), *request);
          });
}

CoordinatorService::Writer<v1::StreamLogsResponse>* CoordinatorService::StreamLogs(
    Context* context, const v1::StreamLogsRequest* request) {
  return StartStream<v1::StreamLogsResponse>(
      context, "StreamLogs", request->job(),
      [this, request = *request](
          std::string id, const std::string&) -> absl::StatusOr<Source<v1::StreamLogsResponse>> {
        if (id.empty()) return absl::InvalidArgumentError("job: empty; name one");
        return LogSource(parts_.store, &parts_.logs, request, std::move(id));
      });
}

absl::StatusOr<std::vector<v1::RankPlacement>> CoordinatorService::RanksToDump(
    const v1::DumpStackRequest& request, const std::string& only, JobPtr* job) const {
  NSA_ASSIGN_OR_RETURN(*job, parts_.store.Find(request.job(), only, v1::JOB_USE_ACTIVE));
  const v1::StoredJob& stored = **job;
  NSA_RETURN_IF_ERROR(CheckRank(request.rank(), stored.job()));
  if (!HasGang(stored.job().state()) || stored.restart_decided()) {
    return absl::FailedPreconditionError(absl::StrCat("state: job ", stored.job().id(), " is ",
                                                      StateTitle(stored.job()),
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
  const auto ask = [=, this](const UnaryCall& call, const Caller& caller) -> absl::Status {
    JobPtr job;
    NSA_ASSIGN_OR_RETURN(const auto ranks, RanksToDump(*request, AskerOf(caller).only(), &job));
    return parts_.dumps.TryRequest(
        job->job(), ranks, kDumpPatience, [call, response](std::vector<v1::StackDump> dumps) {
          const size_t most = limits::kPageBytes / std::max<size_t>(1, dumps.size());
          for (v1::StackDump& dump : dumps) {
            dump.set_stacks(CutText(dump.stacks(), most));
          }
          size_t bytes = 0;
          for (const v1::StackDump& dump : dumps) bytes += dump.ByteSizeLong();
          const absl::Status room = call.Hold(bytes);
          if (room.ok()) response->mutable_dumps()->Assign(dumps.begin(), dumps.end());
          call.Finish(room);
        });
  };
  return UnaryCall(context, parts_.rules, "DumpStack").Begin(parts_.rules.executor, ask);
}

Source<v1::ProfileJobResponse> CoordinatorService::TracesOf(const JobPtr& job,
                                                            const std::string& profile_id,
                                                            const std::string& who) {
  // The profile ends with the stream, however that ends.
  const auto end = std::shared_ptr<const void>(
      nullptr, [this, profile_id](const void*) { parts_.profiles.End(profile_id); });
  return [this, end, profile_id, who, job_id = job->job().id()]() {
    auto next = parts_.profiles.Next(profile_id);
    // The job's history says that it was profiled once all ranks have been passed on.
    if (absl::IsOutOfRange(next.status())) {
      NoteProfiled(&parts_.store, job_id, parts_.profiles.SummaryOf(profile_id), who);
    }
    return next;
  };
}

CoordinatorService::Writer<v1::ProfileJobResponse>* CoordinatorService::ProfileJob(
    Context* context, const v1::ProfileJobRequest* request) {
  static constexpr char kMethod[] = "ProfileJob";
  const auto note = [this, from = OriginOf(*context), job = request->job()](
                        const std::string& who, const absl::Status& result) {
    if (!parts_.rules.audit) return;
    v1::AuditEntry entry;
    entry.set_who(who);
    entry.set_from(from);
    entry.set_what(kMethod);
    entry.set_subject(job);
    entry.set_result(absl::StatusCodeToString(result.code()));
    parts_.rules.audit(entry);
  };
  const absl::StatusOr<Caller> caller = parts_.rules.auth.Check(*context, kMethod);
  if (!caller.ok()) {
    note("", caller.status());
    return Stream<v1::ProfileJobResponse>::Refuse(parts_.rules, kMethod, caller.status());
  }
  const auto traces = std::make_shared<Source<v1::ProfileJobResponse>>();
  const auto begin = [this, traces, request = *request,
                      caller = *caller]() -> absl::StatusOr<std::string> {
    NSA_ASSIGN_OR_RETURN(const JobPtr job,
                         FindJobToProfile(parts_.store, request.job(), AskerOf(caller).only()));
    NSA_ASSIGN_OR_RETURN(
        const std::string id,
        parts_.profiles.Begin(job->job(), {job->placements().begin(), job->placements().end()},
                              request.steps() == 0 ? kProfileSteps : request.steps()));
    *traces = TracesOf(job, id, caller.name);
    return job->job().id();
  };
  return Stream<v1::ProfileJobResponse>::Start(
      parts_.rules, kMethod, &parts_.hub,
      [begin, note, who = caller->name]() -> absl::StatusOr<std::string> {
        absl::StatusOr<std::string> job_id = begin();
        note(who, job_id.status());
        return job_id;
      },
      [traces] { return (*traces)(); });
}

CoordinatorService::Unary* CoordinatorService::ListSavedStacks(
    Context* context, const v1::ListSavedStacksRequest* request,
    v1::ListSavedStacksResponse* response) {
  return UnaryCall(context, parts_.rules, "ListSavedStacks")
      .Run<v1::ListSavedStacksResponse>(
          response, [=, this](const Caller& caller) -> absl::StatusOr<v1::ListSavedStacksResponse> {
            NSA_ASSIGN_OR_RETURN(const JobPtr job,
                                 parts_.store.Find(request->job(), AskerOf(caller).only()));
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
          response, [=, this](const Caller& caller) -> absl::StatusOr<v1::GetSavedStacksResponse> {
            NSA_ASSIGN_OR_RETURN(const JobPtr job,
                                 parts_.store.Find(request->job(), AskerOf(caller).only()));
            return parts_.stacks.Read(job->job().id(), request->id());
          });
}

CoordinatorService::Unary* CoordinatorService::ListCheckpoints(
    Context* context, const v1::ListCheckpointsRequest* request,
    v1::ListCheckpointsResponse* response) {
  const UnaryCall call(context, parts_.rules, "ListCheckpoints");
  return call.RunOn<v1::ListCheckpointsResponse>(
      parts_.files, response,
      [=, this](const Caller& caller) -> absl::StatusOr<v1::ListCheckpointsResponse> {
        NSA_ASSIGN_OR_RETURN(JobFolder folder,
                             parts_.control.OutDir(request->job(), AskerOf(caller)));
        folder.files.over = [call] { return call.Abandoned(); };
        const JobFileScope files(folder.files);
        auto checkpoints = CheckpointsOf(folder.out_dir, *request);
        if (call.Abandoned()) return absl::CancelledError("the caller no longer waits");
        return checkpoints;
      });
}

CoordinatorService::Unary* CoordinatorService::VerifyCheckpoint(
    Context* context, const v1::VerifyCheckpointRequest* request,
    v1::VerifyCheckpointResponse* response) {
  const UnaryCall call(context, parts_.rules, "VerifyCheckpoint");
  return call.RunOn<v1::VerifyCheckpointResponse>(
      parts_.slow, response,
      [=, this](const Caller& caller) -> absl::StatusOr<v1::VerifyCheckpointResponse> {
        NSA_ASSIGN_OR_RETURN(const JobFolder folder,
                             parts_.control.OutDir(request->job(), AskerOf(caller)));
        const JobFileScope files(folder.files);
        return Verify(folder.out_dir, request->step(), [call] { return call.Abandoned(); });
      });
}

CoordinatorService::Unary* CoordinatorService::ListNodes(Context* context,
                                                         const v1::ListNodesRequest* request,
                                                         v1::ListNodesResponse* response) {
  return UnaryCall(context, parts_.rules, "ListNodes")
      .Run<v1::ListNodesResponse>(
          response, [=, this](const Caller& caller) -> absl::StatusOr<v1::ListNodesResponse> {
            NSA_ASSIGN_OR_RETURN(v1::ListNodesResponse nodes,
                                 NodesView(parts_.fleet.Nodes(), parts_.store.Active(),
                                           parts_.nodes.All(), *request));
            KeepOwnJobs(parts_.store, AskerOf(caller).only(), &nodes);
            nodes.set_local_agent(parts_.local_agent);
            return nodes;
          });
}

CoordinatorService::Unary* CoordinatorService::CordonNode(Context* context,
                                                          const v1::CordonNodeRequest* request,
                                                          v1::CordonNodeResponse* response) {
  return UnaryCall(context, parts_.rules, "CordonNode", request->node())
      .Run<v1::CordonNodeResponse>(response, [=, this](const Caller& caller) {
        auto cordoned = parts_.node_control.Cordon(*request, caller.name);
        if (cordoned.ok()) parts_.submitted();
        return cordoned;
      });
}

CoordinatorService::Unary* CoordinatorService::UncordonNode(Context* context,
                                                            const v1::UncordonNodeRequest* request,
                                                            v1::UncordonNodeResponse* response) {
  return UnaryCall(context, parts_.rules, "UncordonNode", request->node())
      .Run<v1::UncordonNodeResponse>(response, [=, this](const Caller&) {
        auto uncordoned = parts_.node_control.Uncordon(*request);
        if (uncordoned.ok()) parts_.submitted();
        return uncordoned;
      });
}

CoordinatorService::Unary* CoordinatorService::GetVersion(Context* context,
                                                          const v1::GetVersionRequest*,
                                                          v1::GetVersionResponse* response) {
  return UnaryCall(context, parts_.rules, "GetVersion")
      .Run<v1::GetVersionResponse>(response,
                                   [this](const Caller&) -> absl::StatusOr<v1::GetVersionResponse> {
                                     return parts_.version();
                                   });
}

CoordinatorService::Unary* CoordinatorService::CreateToken(Context* context,
                                                           const v1::CreateTokenRequest* request,
                                                           v1::CreateTokenResponse* response) {
  return UnaryCall(context, parts_.rules, "CreateToken", WhoseToken(*request))
      .Run<v1::CreateTokenResponse>(response, [=, this](const Caller&) {
        return server::CreateToken(parts_.access, *request);
      });
}

CoordinatorService::Unary* CoordinatorService::ListTokens(Context* context,
                                                          const v1::ListTokensRequest* request,
                                                          v1::ListTokensResponse* response) {
  return UnaryCall(context, parts_.rules, "ListTokens")
      .Run<v1::ListTokensResponse>(response, [=, this](const Caller&) {
        return server::ListTokens(parts_.access, *request);
      });
}

CoordinatorService::Unary* CoordinatorService::RotateToken(Context* context,
                                                           const v1::RotateTokenRequest* request,
                                                           v1::RotateTokenResponse* response) {
  return UnaryCall(context, parts_.rules, "RotateToken", request->token())
      .Run<v1::RotateTokenResponse>(response, [=, this](const Caller&) {
        return server::RotateToken(parts_.access, *request);
      });
}

CoordinatorService::Unary* CoordinatorService::RevokeToken(Context* context,
                                                           const v1::RevokeTokenRequest* request,
                                                           v1::RevokeTokenResponse* response) {
  return UnaryCall(context, parts_.rules, "RevokeToken", request->token())
      .Run<v1::RevokeTokenResponse>(response, [=, this](const Caller&) {
        auto revoked = server::RevokeToken(parts_.access, *request);
        if (revoked.ok() && revoked->token().joined()) {
          parts_.fleet.NoteRevoked(revoked->token().node());
        }
        return revoked;
      });
}

CoordinatorService::Unary* CoordinatorService::ListAudit(Context* context,
                                                         const v1::ListAuditRequest* request,
                                                         v1::ListAuditResponse* response) {
  return UnaryCall(context, parts_.rules, "ListAudit")
      .RunOn<v1::ListAuditResponse>(parts_.files, response, [=, this](const Caller&) {
        return server::ListAudit(parts_.audit, *request);
      });
}

CoordinatorService::Unary* CoordinatorService::ListUse(Context* context,
                                                       const v1::ListUseRequest* /*request*/,
                                                       v1::ListUseResponse* response) {
  return UnaryCall(context, parts_.rules, "ListUse")
      .Run<v1::ListUseResponse>(
          response, [this](const Caller& caller) { return parts_.control.Use(AskerOf(caller)); });
}

}  // namespace nsa::server
