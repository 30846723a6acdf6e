// The service for users (nsactl), on gRPC's callback API. It only passes requests on and returns
// replies; job_control.h makes the decisions. Nothing that may block runs on gRPC's threads.
#pragma once

#include <functional>
#include <string>

#include "nsa/v1/coordinator.grpc.pb.h"
#include "server/act/dump_broker.h"
#include "server/act/job_control.h"
#include "server/act/node/node_control.h"
#include "server/act/profile/profile_broker.h"
#include "server/rpc/call.h"
#include "server/rpc/message_limit.h"
#include "server/rpc/stream.h"
#include "server/store/access_store.h"
#include "server/store/audit/audit_log.h"
#include "server/store/log_store.h"
#include "server/store/stack_store.h"
#include "server/watch/change_hub.h"

namespace nsa::server {

class CoordinatorService final : public v1::CoordinatorService::CallbackService {
 public:
  struct Parts {  // all borrowed
    JobStore& store;
    AccessStore& access;
    AuditLog& audit;
    JobControl& control;
    Fleet& fleet;
    const NodeStore& nodes;
    NodeControl& node_control;
    LogStore& logs;
    StackStore& stacks;
    DumpBroker& dumps;
    ProfileBroker& profiles;
    ChangeHub& hub;
    const CallRules& rules;
    // `files` runs calls that read a user's files. They may take seconds, or never return if a
    // network file system hangs. `slow` runs calls that take minutes. Both are separate from the
    // executor of all other calls, and their queues are bounded.
    Executor& files;
    Executor& slow;
    std::function<void()> submitted;  // wakes the reconciler
    std::function<v1::GetVersionResponse()> version;
    bool local_agent = false;  // the coordinator keeps an agent running on its own machine
  };
  explicit CoordinatorService(Parts parts);

  template <typename T>
  using Writer = grpc::ServerWriteReactor<T>;
  using Unary = grpc::ServerUnaryReactor;
  using Context = grpc::CallbackServerContext;

  Unary* SubmitJob(Context* context, const v1::SubmitJobRequest* request,
                   v1::SubmitJobResponse* response) override;
  Unary* GetJob(Context* context, const v1::GetJobRequest* request,
                v1::GetJobResponse* response) override;
  Unary* ListJobs(Context* context, const v1::ListJobsRequest* request,
                  v1::ListJobsResponse* response) override;
  Writer<v1::WatchJobResponse>* WatchJob(Context* context,
                                         const v1::WatchJobRequest* request) override;
  Writer<v1::WatchEventsResponse>* WatchEvents(Context* context,
                                               const v1::WatchEventsRequest* request) override;
  Writer<v1::WatchRecordsResponse>* WatchRecords(Context* context,
                                                 const v1::WatchRecordsRequest* request) override;
  Unary* GetCurves(Context* context, const v1::GetCurvesRequest* request,
                   v1::GetCurvesResponse* response) override;
  Writer<v1::StreamLogsResponse>* StreamLogs(Context* context,
                                             const v1::StreamLogsRequest* request) override;
  Unary* StopJob(Context* context, const v1::StopJobRequest* request,
                 v1::StopJobResponse* response) override;
  Unary* ResumeJob(Context* context, const v1::ResumeJobRequest* request,
                   v1::ResumeJobResponse* response) override;
  Unary* DeleteJob(Context* context, const v1::DeleteJobRequest* request,
                   v1::DeleteJobResponse* response) override;
  Unary* EditJob(Context* context, const v1::EditJobRequest* request,
                 v1::EditJobResponse* response) override;
  Unary* DumpStack(Context* context, const v1::DumpStackRequest* request,
                   v1::DumpStackResponse* response) override;
  Writer<v1::ProfileJobResponse>* ProfileJob(Context* context,
                                             const v1::ProfileJobRequest* request) override;
  Unary* ListSavedStacks(Context* context, const v1::ListSavedStacksRequest* request,
                         v1::ListSavedStacksResponse* response) override;
  Unary* GetSavedStacks(Context* context, const v1::GetSavedStacksRequest* request,
                        v1::GetSavedStacksResponse* response) override;
  Unary* ListCheckpoints(Context* context, const v1::ListCheckpointsRequest* request,
                         v1::ListCheckpointsResponse* response) override;
  Unary* VerifyCheckpoint(Context* context, const v1::VerifyCheckpointRequest* request,
                          v1::VerifyCheckpointResponse* response) override;
  Unary* ListNodes(Context* context, const v1::ListNodesRequest* request,
                   v1::ListNodesResponse* response) override;
  Unary* CordonNode(Context* context, const v1::CordonNodeRequest* request,
                    v1::CordonNodeResponse* response) override;
  Unary* UncordonNode(Context* context, const v1::UncordonNodeRequest* request,
                      v1::UncordonNodeResponse* response) override;
  Unary* GetVersion(Context* context, const v1::GetVersionRequest* request,
                    v1::GetVersionResponse* response) override;
  Unary* CreateToken(Context* context, const v1::CreateTokenRequest* request,
                     v1::CreateTokenResponse* response) override;
  Unary* ListTokens(Context* context, const v1::ListTokensRequest* request,
                    v1::ListTokensResponse* response) override;
  Unary* RotateToken(Context* context, const v1::RotateTokenRequest* request,
                     v1::RotateTokenResponse* response) override;
  Unary* RevokeToken(Context* context, const v1::RevokeTokenRequest* request,
                     v1::RevokeTokenResponse* response) override;
  Unary* ListAudit(Context* context, const v1::ListAuditRequest* request,
                   v1::ListAuditResponse* response) override;
  Unary* ListUse(Context* context, const v1::ListUseRequest* request,
                 v1::ListUseResponse* response) override;

 private:
  // Makes the source of a stream about a job (or all: empty). `only`: the owner whose jobs alone
  // exist for the caller; empty: all do.
  template <typename Response>
  using MakeSource =
      std::function<absl::StatusOr<Source<Response>>(std::string id, const std::string& only)>;

  template <typename Response>
  Writer<Response>* StartStream(Context* context, const char* method, const std::string& job,
                                MakeSource<Response> make);
  absl::StatusOr<std::vector<v1::RankPlacement>> RanksToDump(const v1::DumpStackRequest& request,
                                                             const std::string& only,
                                                             JobPtr* job) const;

  // The stream of a profile's traces.
  Source<v1::ProfileJobResponse> TracesOf(const JobPtr& job, const std::string& profile_id,
                                          const std::string& who);

  Parts parts_;
  RequestGate gate_;
};

}  // namespace nsa::server
