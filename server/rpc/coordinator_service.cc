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

using Parts = CoordinatorService::Parts;
using Context = grpc::CallbackServerContext;
using Unary = grpc::ServerUnaryReactor;
template <typename Response>
using Writer = grpc::ServerWriteReactor<Response>;
// Makes the source of a stream about a job (or all: empty). `only`: the owner whose jobs alone
// exist for the caller; empty: all do.
template <typename Response>
using MakeSource =
    std::function<absl::StatusOr<Source<Response>>(std::string id, const std::string& only)>;

Asker AskerOf(const Caller& caller) {
  return {caller.name, caller.role == v1::ROLE_SUBMITTER, caller.unix_user};
}

Asker AskerOf(const UnaryCall& call) { return AskerOf(call.caller()); }

absl::StatusOr<v1::SubmitJobResponse> SubmitJob(const Parts& parts,
                                                const v1::SubmitJobRequest& request,
                                                const UnaryCall& call) {
  auto submitted = parts.control.Submit(
      request, [call] { return call.Abandoned(); }, AskerOf(call));
  if (submitted.ok()) parts.submitted();
  return submitted;
}

std::optional<std::string> WhatIsSubmitted(const v1::SubmitJobRequest& request) {
  return request.validate_only() ? std::nullopt : std::optional(request.spec().name());
}

absl::StatusOr<v1::GetJobResponse> GetJob(const Parts& parts, const v1::GetJobRequest& request,
                                          const UnaryCall& call) {
  NSA_RETURN_IF_ERROR(CheckKnownValues(request, "request"));
  const Asker asker = AskerOf(call);
  v1::GetJobResponse found;
  NSA_ASSIGN_OR_RETURN(*found.mutable_job(),
                       parts.control.Get(request.job(), asker, request.use()));
  found.set_namesakes(parts.store.Namesakes(request.job(), asker.only()));
  return found;
}

absl::StatusOr<v1::ListJobsResponse> ListJobs(const Parts& parts,
                                              const v1::ListJobsRequest& request,
                                              const UnaryCall& call) {
  return parts.control.List(request, AskerOf(call));
}

absl::StatusOr<v1::StopJobResponse> StopJob(const Parts& parts, const v1::StopJobRequest& request,
                                            const UnaryCall& call) {
  auto stopped = Wrap<v1::StopJobResponse>(parts.control.Stop(request, AskerOf(call)));
  if (stopped.ok()) parts.submitted();
  return stopped;
}

Unary* ResumeJob(const Parts& parts, Context* context, const v1::ResumeJobRequest* request,
                 v1::ResumeJobResponse* response) {
  const UnaryCall call(context, parts.rules, "ResumeJob", request->job());
  const auto resume = [&parts, request](const UnaryCall& known) {
    auto resumed = Wrap<v1::ResumeJobResponse>(
        parts.control.Resume(*request, AskerOf(known), [known] { return known.Abandoned(); }));
    if (resumed.ok()) parts.submitted();
    return resumed;
  };
  // Another spec is checked by preflight, which reads files.
  Executor& executor = request->has_spec() ? parts.files : parts.rules.executor;
  return call.RunOn<v1::ResumeJobResponse>(executor, response, resume);
}

absl::StatusOr<v1::DeleteJobResponse> DeleteJob(const Parts& parts,
                                                const v1::DeleteJobRequest& request,
                                                const UnaryCall& call) {
  return parts.control.Delete(request, call.origin(), AskerOf(call));
}

absl::StatusOr<v1::EditJobResponse> EditJob(const Parts& parts, const v1::EditJobRequest& request,
                                            const UnaryCall& call) {
  const std::string only = AskerOf(call).only();
  const auto job = server::EditJob(parts.store, request, call.caller().name, only);
  if (!job.ok()) return Veiled(job.status(), parts.store, only);
  v1::EditJobResponse edited;
  *edited.mutable_job() = parts.control.View(**job);
  return edited;
}

// Starts a stream about one job, or about all when `job` is empty. Nothing is looked up for a
// caller without the token. Making the source may read from the disk, so its first call does it.
template <typename Response>
Writer<Response>* StartStream(const Parts& parts, Context* context, const char* method,
                              const std::string& job, MakeSource<Response> make) {
  const auto caller = parts.rules.auth.Check(*context, method);
  if (!caller.ok()) return Stream<Response>::Refuse(parts.rules, method, caller.status());
  const std::string only = AskerOf(*caller).only();
  // Searched on the executor: the store's lock may be held over a commit.
  auto id = std::make_shared<std::string>();
  auto source = std::make_shared<Source<Response>>();
  return Stream<Response>::Start(
      parts.rules, method, &parts.hub,
      [&parts, job, only, id]() -> absl::StatusOr<std::string> {
        if (job.empty()) return std::string();
        NSA_ASSIGN_OR_RETURN(const JobPtr found, parts.store.Find(job, only));
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

Writer<v1::WatchJobResponse>* WatchJob(const Parts& parts, Context* context,
                                       const v1::WatchJobRequest* request) {
  return StartStream<v1::WatchJobResponse>(
      parts, context, "WatchJob", request->job(),
      [&parts](std::string id, const std::string&) -> absl::StatusOr<Source<v1::WatchJobResponse>> {
        if (id.empty()) return absl::InvalidArgumentError("job: empty; name one");
        return WatchJobSource(parts.store, parts.control, std::move(id));
      });
}

Writer<v1::WatchEventsResponse>* WatchEvents(const Parts& parts, Context* context,
                                             const v1::WatchEventsRequest* request) {
  return StartStream<v1::WatchEventsResponse>(
      parts, context, "WatchEvents", request->job(),
      [&parts, request = *request](std::string id, const std::string& only) {
        return EventSource(parts.store, request, std::move(id), only);
      });
}

Writer<v1::WatchRecordsResponse>* WatchRecords(const Parts& parts, Context* context,
                                               const v1::WatchRecordsRequest* request) {
  return StartStream<v1::WatchRecordsResponse>(
      parts, context, "WatchRecords", request->job(),
      [&parts, request = *request](
          std::string id, const std::string&) -> absl::StatusOr<Source<v1::WatchRecordsResponse>> {
        if (id.empty()) return absl::InvalidArgumentError("job: empty; name one");
        return RecordSource(parts.store, request, std::move(id));
      });
}

absl::StatusOr<v1::GetCurvesResponse> GetCurves(const Parts& parts,
                                                const v1::GetCurvesRequest& request,
                                                const UnaryCall& call) {
  NSA_ASSIGN_OR_RETURN(const JobPtr job, parts.store.Find(request.job(), AskerOf(call).only()));
  return CurvesOf(parts.store, job->job().id(), request);
}

Writer<v1::StreamLogsResponse>* StreamLogs(const Parts& parts, Context* context,
                                           const v1::StreamLogsRequest* request) {
  return StartStream<v1::StreamLogsResponse>(
      parts, context, "StreamLogs", request->job(),
      [&parts, request = *request](
          std::string id, const std::string&) -> absl::StatusOr<Source<v1::StreamLogsResponse>> {
        if (id.empty()) return absl::InvalidArgumentError("job: empty; name one");
        return LogSource(parts.store, &parts.logs, request, std::move(id));
      });
}

absl::StatusOr<std::vector<v1::RankPlacement>> RanksToDump(const Parts& parts,
                                                           const v1::DumpStackRequest& request,
                                                           const std::string& only, JobPtr* job) {
  NSA_ASSIGN_OR_RETURN(*job, parts.store.Find(request.job(), only, v1::JOB_USE_ACTIVE));
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

Unary* DumpStack(const Parts& parts, Context* context, const v1::DumpStackRequest* request,
                 v1::DumpStackResponse* response) {
  const auto ask = [&parts, request, response](const UnaryCall& call) -> absl::Status {
    JobPtr job;
    NSA_ASSIGN_OR_RETURN(const auto ranks,
                         RanksToDump(parts, *request, AskerOf(call).only(), &job));
    return parts.dumps.TryRequest(
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
  return UnaryCall(context, parts.rules, "DumpStack").Begin(parts.rules.executor, ask);
}

// The stream of a profile's traces.
Source<v1::ProfileJobResponse> TracesOf(const Parts& parts, const JobPtr& job,
                                        const std::string& profile_id, const std::string& who) {
  // The profile ends with the stream, however that ends.
  const auto end = std::shared_ptr<const void>(
      nullptr, [&parts, profile_id](const void*) { parts.profiles.End(profile_id); });
  return [&parts, end, profile_id, who, job_id = job->job().id()]() {
    auto next = parts.profiles.Next(profile_id);
    // The job's history says that it was profiled once all ranks have been passed on.
    if (absl::IsOutOfRange(next.status())) {
      NoteProfiled(&parts.store, job_id, parts.profiles.SummaryOf(profile_id), who);
    }
    return next;
  };
}

Writer<v1::ProfileJobResponse>* ProfileJob(const Parts& parts, Context* context,
                                           const v1::ProfileJobRequest* request) {
  static constexpr char kMethod[] = "ProfileJob";
  const auto note = [&parts, from = OriginOf(*context), job = request->job()](
                        const std::string& who, const absl::Status& result) {
    if (!parts.rules.audit) return;
    v1::AuditEntry entry;
    entry.set_who(who);
    entry.set_from(from);
    entry.set_what(kMethod);
    entry.set_subject(job);
    entry.set_result(absl::StatusCodeToString(result.code()));
    parts.rules.audit(entry);
  };
  const absl::StatusOr<Caller> caller = parts.rules.auth.Check(*context, kMethod);
  if (!caller.ok()) {
    note("", caller.status());
    return Stream<v1::ProfileJobResponse>::Refuse(parts.rules, kMethod, caller.status());
  }
  const auto traces = std::make_shared<Source<v1::ProfileJobResponse>>();
  const auto begin = [&parts, traces, request = *request,
                      caller = *caller]() -> absl::StatusOr<std::string> {
    NSA_ASSIGN_OR_RETURN(const JobPtr job,
                         FindJobToProfile(parts.store, request.job(), AskerOf(caller).only()));
    NSA_ASSIGN_OR_RETURN(
        const std::string id,
        parts.profiles.Begin(job->job(), {job->placements().begin(), job->placements().end()},
                             request.steps() == 0 ? kProfileSteps : request.steps()));
    *traces = TracesOf(parts, job, id, caller.name);
    return job->job().id();
  };
  return Stream<v1::ProfileJobResponse>::Start(
      parts.rules, kMethod, &parts.hub,
      [begin, note, who = caller->name]() -> absl::StatusOr<std::string> {
        absl::StatusOr<std::string> job_id = begin();
        note(who, job_id.status());
        return job_id;
      },
      [traces] { return (*traces)(); });
}

absl::StatusOr<v1::ListSavedStacksResponse> ListSavedStacks(
    const Parts& parts, const v1::ListSavedStacksRequest& request, const UnaryCall& call) {
  NSA_ASSIGN_OR_RETURN(const JobPtr job, parts.store.Find(request.job(), AskerOf(call).only()));
  v1::ListSavedStacksResponse list;
  const auto saved = parts.stacks.List(job->job().id());
  list.mutable_saved()->Assign(saved.begin(), saved.end());
  return list;
}

absl::StatusOr<v1::GetSavedStacksResponse> GetSavedStacks(const Parts& parts,
                                                          const v1::GetSavedStacksRequest& request,
                                                          const UnaryCall& call) {
  NSA_ASSIGN_OR_RETURN(const JobPtr job, parts.store.Find(request.job(), AskerOf(call).only()));
  return parts.stacks.Read(job->job().id(), request.id());
}

absl::StatusOr<v1::ListCheckpointsResponse> ListCheckpoints(
    const Parts& parts, const v1::ListCheckpointsRequest& request, const UnaryCall& call) {
  NSA_ASSIGN_OR_RETURN(JobFolder folder, parts.control.OutDir(request.job(), AskerOf(call)));
  folder.files.over = [call] { return call.Abandoned(); };
  const JobFileScope files(folder.files);
  auto checkpoints = CheckpointsOf(folder.out_dir, request);
  if (call.Abandoned()) return absl::CancelledError("the caller no longer waits");
  return checkpoints;
}

absl::StatusOr<v1::VerifyCheckpointResponse> VerifyCheckpoint(
    const Parts& parts, const v1::VerifyCheckpointRequest& request, const UnaryCall& call) {
  NSA_ASSIGN_OR_RETURN(const JobFolder folder, parts.control.OutDir(request.job(), AskerOf(call)));
  const JobFileScope files(folder.files);
  return Verify(folder.out_dir, request.step(), [call] { return call.Abandoned(); });
}

absl::StatusOr<v1::ListNodesResponse> ListNodes(const Parts& parts,
                                                const v1::ListNodesRequest& request,
                                                const UnaryCall& call) {
  NSA_ASSIGN_OR_RETURN(
      v1::ListNodesResponse nodes,
      NodesView(parts.fleet.Nodes(), parts.store.Active(), parts.nodes.All(), request));
  KeepOwnJobs(parts.store, AskerOf(call).only(), &nodes);
  nodes.set_local_agent(parts.local_agent);
  return nodes;
}

absl::StatusOr<v1::CordonNodeResponse> CordonNode(const Parts& parts,
                                                  const v1::CordonNodeRequest& request,
                                                  const UnaryCall& call) {
  auto cordoned = parts.node_control.Cordon(request, call.caller().name);
  if (cordoned.ok()) parts.submitted();
  return cordoned;
}

absl::StatusOr<v1::UncordonNodeResponse> UncordonNode(const Parts& parts,
                                                      const v1::UncordonNodeRequest& request,
                                                      const UnaryCall&) {
  auto uncordoned = parts.node_control.Uncordon(request);
  if (uncordoned.ok()) parts.submitted();
  return uncordoned;
}

absl::StatusOr<v1::GetVersionResponse> GetVersion(const Parts& parts, const v1::GetVersionRequest&,
                                                  const UnaryCall&) {
  return parts.version();
}

absl::StatusOr<v1::CreateTokenResponse> CreateToken(const Parts& parts,
                                                    const v1::CreateTokenRequest& request,
                                                    const UnaryCall&) {
  return server::CreateToken(parts.access, request);
}

absl::StatusOr<v1::ListTokensResponse> ListTokens(const Parts& parts,
                                                  const v1::ListTokensRequest& request,
                                                  const UnaryCall&) {
  return server::ListTokens(parts.access, request);
}

absl::StatusOr<v1::RotateTokenResponse> RotateToken(const Parts& parts,
                                                    const v1::RotateTokenRequest& request,
                                                    const UnaryCall&) {
  return server::RotateToken(parts.access, request);
}

absl::StatusOr<v1::RevokeTokenResponse> RevokeToken(const Parts& parts,
                                                    const v1::RevokeTokenRequest& request,
                                                    const UnaryCall&) {
  auto revoked = server::RevokeToken(parts.access, request);
  if (revoked.ok() && revoked->token().joined()) parts.fleet.NoteRevoked(revoked->token().node());
  return revoked;
}

absl::StatusOr<v1::ListAuditResponse> ListAudit(const Parts& parts,
                                                const v1::ListAuditRequest& request,
                                                const UnaryCall&) {
  return server::ListAudit(parts.audit, request);
}

absl::StatusOr<v1::ListUseResponse> ListUse(const Parts& parts, const v1::ListUseRequest&,
                                            const UnaryCall& call) {
  return parts.control.Use(AskerOf(call));
}

void AddMethods(const Parts& parts, const Methods<const Parts>& methods) {
  methods.Unary("SubmitJob", SubmitJob, WhatIsSubmitted, &parts.files);
  methods.Unary("GetJob", GetJob);
  methods.Unary("ListJobs", ListJobs);
  methods.Streaming("WatchJob", WatchJob);
  methods.Streaming("WatchEvents", WatchEvents);
  methods.Streaming("WatchRecords", WatchRecords);
  methods.Unary("GetCurves", GetCurves);
  methods.Streaming("StreamLogs", StreamLogs);
  methods.Unary("StopJob", StopJob, &v1::StopJobRequest::job);
  methods.Call("ResumeJob", ResumeJob);
  methods.Unary("DeleteJob", DeleteJob, &v1::DeleteJobRequest::job, &parts.files);
  methods.Unary("EditJob", EditJob, &v1::EditJobRequest::job);
  methods.Call("DumpStack", DumpStack);
  methods.Streaming("ProfileJob", ProfileJob);
  methods.Unary("ListSavedStacks", ListSavedStacks);
  methods.Unary("GetSavedStacks", GetSavedStacks);
  methods.Unary("ListCheckpoints", ListCheckpoints, nullptr, &parts.files);
  methods.Unary("VerifyCheckpoint", VerifyCheckpoint, nullptr, &parts.slow);
  methods.Unary("ListNodes", ListNodes);
  methods.Unary("CordonNode", CordonNode, &v1::CordonNodeRequest::node);
  methods.Unary("UncordonNode", UncordonNode, &v1::UncordonNodeRequest::node);
  methods.Unary("GetVersion", GetVersion);
  methods.Unary("CreateToken", CreateToken, WhoseToken);
  methods.Unary("ListTokens", ListTokens);
  methods.Unary("RotateToken", RotateToken, &v1::RotateTokenRequest::token);
  methods.Unary("RevokeToken", RevokeToken, &v1::RevokeTokenRequest::token);
  methods.Unary("ListAudit", ListAudit, nullptr, &parts.files);
  methods.Unary("ListUse", ListUse);
}

}  // namespace

CoordinatorService::CoordinatorService(Parts parts)
    : parts_(std::move(parts)), gate_(parts_.rules) {
  AddMethods(parts_,
             Methods<const Parts>("CoordinatorService", &gate_, &parts_,
                                  [this](int index, grpc::internal::MethodHandler* handler) {
                                    MarkMethodCallback(index, handler);
                                  }));
}

}  // namespace nsa::server
