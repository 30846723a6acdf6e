// A CoordinatorService in the test process. It answers with what the test puts into it, and keeps
// the requests. Part of the library nsa_client_testing (tests/client).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "grpcpp/grpcpp.h"
#include "nsa/v1/coordinator.grpc.pb.h"

namespace nsa {

class FakeCoordinatorService final : public v1::CoordinatorService::Service {
 public:
  // What it answers with. Set before the calls under test.
  struct State {
    std::vector<v1::Job> jobs;  // newest first
    std::vector<v1::JobEvent> events;
    std::vector<v1::WatchRecordsResponse> records;
    std::vector<v1::StreamLogsResponse> logs;
    std::vector<v1::CheckpointInfo> checkpoints;
    std::vector<std::string> checkpoint_problems;
    std::vector<v1::StackDump> dumps;
    std::vector<v1::ProfileJobResponse> profile;
    std::vector<v1::GetSavedStacksResponse> saved_stacks;  // oldest first
    std::vector<v1::Node> nodes;
    v1::ListUseResponse use;
    // A machine that is drained is empty after it was listed this often; its jobs then run on
    // "elsewhere".
    int looks_until_drained = 1;
    bool local_agent = false;
    v1::PreflightReport report;
    // Called with each request before it is answered.
    std::function<void(const std::string& method, const google::protobuf::Message& request)>
        on_call;
    // What WatchJob sends, one after another over all its calls. A job without an id breaks the
    // stream there, as when a coordinator is killed.
    std::vector<v1::Job> watch;
    // Method name to the status of its next calls, used up in order.
    std::map<std::string, std::vector<grpc::Status>> failures;
    // How long every call takes.
    absl::Duration delay;
    // Jobs that are asked to stop have ended at once.
    bool stops_at_once = false;
    // Sent with every answer.
    std::string warning;
    // Bearer token that callers must send; empty: none.
    std::string token;
  };

  // The test may use the state between calls, the service uses it during a call. Call state() again
  // before each use, and once more before a call: its lock orders the test's writes before the
  // service's reads.
  State& state() {
    MutexLock lock(&mutex_);
    return state_;
  }

  // The requests to this method so far, as text protos.
  std::vector<std::string> Requests(const std::string& method);

  grpc::Status SubmitJob(grpc::ServerContext* context, const v1::SubmitJobRequest* request,
                         v1::SubmitJobResponse* response) override;
  grpc::Status GetJob(grpc::ServerContext* context, const v1::GetJobRequest* request,
                      v1::GetJobResponse* response) override;
  grpc::Status ListJobs(grpc::ServerContext* context, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override;
  grpc::Status WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest* request,
                        grpc::ServerWriter<v1::WatchJobResponse>* writer) override;
  grpc::Status WatchEvents(grpc::ServerContext* context, const v1::WatchEventsRequest* request,
                           grpc::ServerWriter<v1::WatchEventsResponse>* writer) override;
  grpc::Status WatchRecords(grpc::ServerContext* context, const v1::WatchRecordsRequest* request,
                            grpc::ServerWriter<v1::WatchRecordsResponse>* writer) override;
  grpc::Status GetCurves(grpc::ServerContext* context, const v1::GetCurvesRequest* request,
                         v1::GetCurvesResponse* response) override;
  grpc::Status StreamLogs(grpc::ServerContext* context, const v1::StreamLogsRequest* request,
                          grpc::ServerWriter<v1::StreamLogsResponse>* writer) override;
  grpc::Status StopJob(grpc::ServerContext* context, const v1::StopJobRequest* request,
                       v1::StopJobResponse* response) override;
  grpc::Status ResumeJob(grpc::ServerContext* context, const v1::ResumeJobRequest* request,
                         v1::ResumeJobResponse* response) override;
  grpc::Status DeleteJob(grpc::ServerContext* context, const v1::DeleteJobRequest* request,
                         v1::DeleteJobResponse* response) override;
  grpc::Status EditJob(grpc::ServerContext* context, const v1::EditJobRequest* request,
                       v1::EditJobResponse* response) override;
  grpc::Status DumpStack(grpc::ServerContext* context, const v1::DumpStackRequest* request,
                         v1::DumpStackResponse* response) override;
  grpc::Status ProfileJob(grpc::ServerContext* context, const v1::ProfileJobRequest* request,
                          grpc::ServerWriter<v1::ProfileJobResponse>* writer) override;
  grpc::Status ListSavedStacks(grpc::ServerContext* context,
                               const v1::ListSavedStacksRequest* request,
                               v1::ListSavedStacksResponse* response) override;
  grpc::Status GetSavedStacks(grpc::ServerContext* context,
                              const v1::GetSavedStacksRequest* request,
                              v1::GetSavedStacksResponse* response) override;
  grpc::Status ListCheckpoints(grpc::ServerContext* context,
                               const v1::ListCheckpointsRequest* request,
                               v1::ListCheckpointsResponse* response) override;
  grpc::Status VerifyCheckpoint(grpc::ServerContext* context,
                                const v1::VerifyCheckpointRequest* request,
                                v1::VerifyCheckpointResponse* response) override;
  grpc::Status ListUse(grpc::ServerContext* context, const v1::ListUseRequest* request,
                       v1::ListUseResponse* response) override;
  grpc::Status ListNodes(grpc::ServerContext* context, const v1::ListNodesRequest* request,
                         v1::ListNodesResponse* response) override;
  grpc::Status CordonNode(grpc::ServerContext* context, const v1::CordonNodeRequest* request,
                          v1::CordonNodeResponse* response) override;
  grpc::Status UncordonNode(grpc::ServerContext* context, const v1::UncordonNodeRequest* request,
                            v1::UncordonNodeResponse* response) override;
  grpc::Status GetVersion(grpc::ServerContext* context, const v1::GetVersionRequest* request,
                          v1::GetVersionResponse* response) override;

 private:
  // Records the request, waits, checks the token, and takes the next scripted failure.
  grpc::Status Enter(grpc::ServerContext* context, const std::string& method,
                     const google::protobuf::Message& request);
  v1::Job* Find(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::Node* FindNode(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drain(v1::Node* node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::vector<std::string>> requests_ ABSL_GUARDED_BY(mutex_);
  size_t watched_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The service on a unix socket.
class FakeCoordinator {
 public:
  explicit FakeCoordinator(const std::string& socket_path);
  ~FakeCoordinator();

  const std::string& address() const { return address_; }
  FakeCoordinatorService& service() { return service_; }
  FakeCoordinatorService::State& state() { return service_.state(); }

 private:
  const std::string address_;
  FakeCoordinatorService service_;
  std::unique_ptr<grpc::Server> server_;
};

// A running job "demo", id "jdemo1234567", 375 of 1000 steps, and its parts, for tests to change.
v1::Job DemoJob();

}  // namespace nsa
