// The connection to the coordinator, which all parts of the agent use and which can be replaced by
// a fresh one.
//
// Nothing here trusts gRPC's timers, which stand still when the wall clock is set back
// (common/rpc/call_watch.h): every call ends in time by the monotonic clock.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/rpc/call_watch.h"
#include "common/rpc/rpc.h"
#include "nsa/v1/fleet.grpc.pb.h"
#include "worker/agent/options.h"

namespace nsa::agent {

// Thread-safe.
class Link {
 public:
  // Makes a channel to the coordinator and opens no connection yet. Errors are those of
  // OpenChannel(): about the files of `tls`.
  static absl::StatusOr<std::unique_ptr<Link>> Open(const AgentOptions& options);

  // Waits for a connection, for `patience` and at most a good second longer. Unavailable without
  // one.
  absl::Status Connect(absl::Duration patience);
  bool connected() const;

  // Later calls use a new connection, which shares nothing with the present one. Calls in progress
  // end as they would. On error nothing changes.
  absl::Status Reopen();

  // Whether the files of `tls` were changed or replaced since the present connection was made, as
  // when certificates are renewed. Reopen() uses them as they are then.
  bool HasOtherFiles() const;

  // The job store under which this agent's workers were started; empty: not known yet.
  std::string store_id() const;
  void set_store_id(const std::string& id);

 private:
  friend class Caller;
  struct Channel {
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<v1::FleetService::StubInterface> stub;
  };

  explicit Link(const AgentOptions& options);
  std::shared_ptr<const Channel> channel() const;

  const std::string address_;
  const v1::TlsConfig tls_;
  const std::string secret_;  // of this node, sent with every call
  CallWatch watch_;
  mutable Mutex mutex_;
  std::shared_ptr<const Channel> channel_ ABSL_GUARDED_BY(mutex_);  // calls in progress own it, too
  std::string files_ ABSL_GUARDED_BY(mutex_);  // FilesOf() as the channel was made
  std::string store_id_ ABSL_GUARDED_BY(mutex_);
};

// Makes the calls of one part of the agent, which can be ended together. Thread-safe.
class Caller {
 public:
  // The link lives longer.
  explicit Caller(Link* link) : link_(link) {}

  std::string store_id() const { return link_->store_id(); }

  // Calls a method of FleetService::StubInterface. DeadlineExceeded without an answer within five
  // seconds. `refused` receives whether the error is the coordinator's answer.
  template <typename Method, typename Request, typename Response>
  absl::Status Call(Method method, const Request& request, Response* response,
                    bool* refused = nullptr) {
    const auto context = MakeContext(kPatience, link_->secret_);
    if (!Begin(context.get())) return absl::CancelledError("no call is made any more");
    const auto channel = link_->channel();
    const CallWatch::Guard guard(&link_->watch_, context.get(), kPatience);
    const grpc::Status status = (channel->stub.get()->*method)(context.get(), request, response);
    End(context.get());
    if (refused != nullptr) *refused = !DetailsOf(status).reason.empty();
    return !status.ok() && guard.overran() ? NoAnswer() : FromGrpc(status);
  }

  // Ends the calls in progress; later ones fail at once. Both are Cancelled.
  void Cancel();

 private:
  static constexpr absl::Duration kPatience = absl::Seconds(5);

  bool Begin(grpc::ClientContext* context);
  void End(grpc::ClientContext* context);
  static absl::Status NoAnswer();

  Link* const link_;
  Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<grpc::ClientContext*> in_progress_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nsa::agent
