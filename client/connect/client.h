// Typed calls to the coordinator. Every unary call has a deadline, which holds too when the wall
// clock is set meanwhile (common/rpc/call_watch.h); every call ends early on Ctrl-C.
// A new RPC needs no change here: a method is found by the types of its request and response.
//
// Errors of the coordinator are passed on unchanged. When no coordinator answered
// (Unavailable) or the answer took too long (DeadlineExceeded), the error names the address that
// was tried and says what to do.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/connect/endpoint.h"
#include "common/base/mutex.h"
#include "common/rpc/call_watch.h"
#include "nsa/v1/coordinator.pb.h"

namespace grpc {
class Channel;
class Status;
}  // namespace grpc

namespace nsa {
struct ErrorDetails;
}  // namespace nsa

namespace nsa::client {

class Interrupt;

// Deadlines of calls; --timeout overrides all of them.
constexpr absl::Duration kCallTimeout = absl::Seconds(10);
constexpr absl::Duration kDumpTimeout = absl::Seconds(60);    // stacks of a job with many ranks
constexpr absl::Duration kVerifyTimeout = absl::Minutes(30);  // hashes of many GiB

// True when the coordinator could not be reached or did not answer in time: it may later.
inline bool NoAnswer(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

// `status`, after a line for each violation that its details name. Each is listed once.
absl::Status WithViolations(const absl::Status& status, const ErrorDetails& details);

struct CallOptions {
  absl::Duration timeout = kCallTimeout;
  ErrorDetails* details = nullptr;  // receives the details of an error
  bool raw = false;                 // texts as they are, to be sent back, whatever set_clean() says
};

class Client {
 public:
  // Opens no connection yet. `timeout` replaces the deadline of every unary call. `interrupt`
  // outlives the client.
  static absl::StatusOr<std::unique_ptr<Client>> Open(const Endpoint& endpoint,
                                                      std::optional<absl::Duration> timeout,
                                                      Interrupt* interrupt);
  ~Client();

  const Endpoint& endpoint() const { return endpoint_; }

  // client->Call<v1::ListNodesResponse>(v1::ListNodesRequest())
  template <typename Response>
  absl::StatusOr<Response> Call(const google::protobuf::Message& request,
                                const CallOptions& options = CallOptions()) {
    Response response;
    const absl::Status status = CallInto(request, &response, options);
    if (!status.ok()) return status;
    return response;
  }

  // Calls `on_message` in this thread for each response until it returns false. Returns OK at the
  // end of the stream or after false, Cancelled on Ctrl-C. A stream that breaks is Unavailable; the
  // caller decides whether to continue (see follow.h).
  template <typename Response>
  absl::Status Stream(const google::protobuf::Message& request,
                      const std::function<bool(const Response&)>& on_message) {
    Response response;
    return StreamInto(request, &response, [&] { return on_message(response); });
  }

  // Whether the texts of responses are cleaned (CleanText()), which is right where people read
  // them.
  void set_clean(bool clean) { clean_ = clean; }

  // What is called with notes for the user; without it there are none.
  void set_note(std::function<void(const std::string& text)> note) { note_ = std::move(note); }

  // The job of this id, or the one that this name means for `use`. To a reader it is noted that
  // there are others of the name.
  absl::StatusOr<v1::Job> GetJob(const std::string& job, v1::JobUse use = v1::JOB_USE_UNSPECIFIED,
                                 const CallOptions& options = {});

  // All checkpoints of the job of this id or name, oldest first.
  absl::StatusOr<v1::ListCheckpointsResponse> ListCheckpoints(const std::string& job);

  // What the coordinator let its callers know with its last answer; usually empty.
  std::string warning() const;

  // All machines, by name.
  absl::StatusOr<v1::ListNodesResponse> ListNodes();

 private:
  using Message = google::protobuf::Message;

  Client(Endpoint endpoint, std::optional<absl::Duration> timeout, Interrupt* interrupt,
         std::shared_ptr<grpc::Channel> channel);

  absl::Status CallInto(const Message& request, Message* response, const CallOptions& options);
  absl::Status StreamInto(const Message& request, Message* response,
                          const std::function<bool()>& on_message);
  absl::Status Explain(const grpc::Status& status, absl::Duration timeout) const;
  std::shared_ptr<grpc::Channel> channel() const;
  // After a call that reached nobody, the next one uses a fresh connection: gRPC tries a lost one
  // again by a timer, which stands still when the wall clock is set back.
  void RenewIfLost(const grpc::Status& status);

  const Endpoint endpoint_;
  const std::optional<absl::Duration> timeout_;
  Interrupt* const interrupt_;
  CallWatch watch_;
  mutable Mutex mutex_;
  std::shared_ptr<grpc::Channel> channel_ ABSL_GUARDED_BY(mutex_);
  std::string warning_ ABSL_GUARDED_BY(mutex_);
  bool clean_ = true;
  std::function<void(const std::string& text)> note_;
};

}  // namespace nsa::client
