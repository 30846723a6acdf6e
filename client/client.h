// The coordinator as typed calls. Every unary call has a deadline; every call ends early on Ctrl-C.
//
// Errors: the coordinator's own, word for word. One that no coordinator answered (Unavailable) or
// that took too long (DeadlineExceeded) says which address was tried and what to do.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/endpoint.h"
#include "client/interrupt.h"
#include "common/rpc.h"
#include "nsa/v1/coordinator.grpc.pb.h"

namespace nsa {

class Client {
 public:
  // Opens no connection yet. Without `timeout` unary calls have 10 s, stack dumps 60 s and
  // verifications 30 min. `interrupt` outlives the client.
  static absl::StatusOr<std::unique_ptr<Client>> Open(const Endpoint& endpoint,
                                                      std::optional<absl::Duration> timeout,
                                                      Interrupt* interrupt);

  const Endpoint& endpoint() const { return endpoint_; }

  // `details`, when not null, receives the field violations of an error.
  absl::StatusOr<v1::SubmitJobResponse> SubmitJob(const v1::SubmitJobRequest& request,
                                                  ErrorDetails* details);
  absl::StatusOr<v1::Job> GetJob(const std::string& job);
  absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request);
  absl::StatusOr<v1::Job> StopJob(const v1::StopJobRequest& request);
  absl::StatusOr<v1::Job> ResumeJob(const std::string& job);
  absl::StatusOr<v1::DeleteJobResponse> DeleteJob(const v1::DeleteJobRequest& request);
  absl::StatusOr<v1::DumpStackResponse> DumpStack(const v1::DumpStackRequest& request);
  absl::StatusOr<v1::ListCheckpointsResponse> ListCheckpoints(const std::string& job);
  absl::StatusOr<v1::VerifyCheckpointResponse> VerifyCheckpoint(
      const v1::VerifyCheckpointRequest& request);
  absl::StatusOr<v1::ListNodesResponse> ListNodes();
  absl::StatusOr<v1::GetVersionResponse> GetVersion();

  // Streams: `on_message` is called from this thread for each response and returns false to leave.
  // Returns OK at the end of the stream or when left, Cancelled on Ctrl-C. A stream that breaks is
  // Unavailable; the caller decides whether to continue (see follow.h).
  absl::Status WatchJob(const v1::WatchJobRequest& request,
                        const std::function<bool(const v1::WatchJobResponse&)>& on_message);
  absl::Status WatchEvents(const v1::WatchEventsRequest& request,
                           const std::function<bool(const v1::WatchEventsResponse&)>& on_message);
  absl::Status WatchRecords(const v1::WatchRecordsRequest& request,
                            const std::function<bool(const v1::WatchRecordsResponse&)>& on_message);
  absl::Status StreamLogs(const v1::StreamLogsRequest& request,
                          const std::function<bool(const v1::StreamLogsResponse&)>& on_message);

 private:
  using Stub = v1::CoordinatorService::Stub;

  Client(Endpoint endpoint, std::optional<absl::Duration> timeout, Interrupt* interrupt,
         std::unique_ptr<Stub> stub)
      : endpoint_(std::move(endpoint)),
        timeout_(timeout),
        interrupt_(interrupt),
        stub_(std::move(stub)) {}

  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
                                const Request& request, absl::Duration default_timeout,
                                ErrorDetails* details = nullptr);
  template <typename Request, typename Response>
  absl::Status Stream(std::unique_ptr<grpc::ClientReader<Response>> (Stub::*method)(
                          grpc::ClientContext*, const Request&),
                      const Request& request,
                      const std::function<bool(const Response&)>& on_message);

  absl::Status Explain(const grpc::Status& status, absl::Duration timeout) const;

  const Endpoint endpoint_;
  const std::optional<absl::Duration> timeout_;
  Interrupt* const interrupt_;
  const std::unique_ptr<Stub> stub_;
};

}  // namespace nsa
