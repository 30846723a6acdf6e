// The limits of a request, checked before it is unpacked: who sends it, its bytes, and what it
// would take in memory (common/run/unpacked_bytes.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/impl/rpc_service_method.h"
#include "server/rpc/call.h"
#include "server/rpc/call_quota.h"
#include "server/rpc/stream.h"

namespace nsa::server {

// Decides whether a request is unpacked. One for each service.
class RequestGate {
 public:
  // What a call takes of its quotas, to be kept until it has ended.
  struct Admitted {
    std::shared_ptr<void> request;
    std::shared_ptr<AnswerShare> answers;  // null: not counted
  };

  explicit RequestGate(const CallRules& rules);

  const CallRules& rules() const { return *rules_; }

  // Unauthenticated when nobody knows the caller; ResourceExhausted for a request that is too large
  // (RequestLimit()), and for a caller with too many calls in progress. A caller who is known and
  // may not call the method passes: the call refuses it, and the audit log says what it was about.
  absl::StatusOr<Admitted> Admit(const grpc::CallbackServerContext& context,
                                 const google::protobuf::MethodDescriptor& method,
                                 grpc_byte_buffer* request);

 private:
  const CallRules* rules_;
  const CallQuota requests_;
  const CallQuota of_people_;  // their answers
  const CallQuota of_agents_;
};

// The handler of one method: gRPC's own, behind the gate. It has the interface of the handlers that
// generated code makes; a service gives it to MarkMethodCallback().
class LimitedHandler final : public grpc::internal::MethodHandler {
 public:
  using Handler = std::unique_ptr<grpc::internal::MethodHandler>;

  // `refusing` makes a handler that ends the call with this error, whatever the request.
  LimitedHandler(RequestGate* gate, const google::protobuf::MethodDescriptor* method, Handler inner,
                 std::function<Handler(const absl::Status& why)> refusing)
      : gate_(gate), method_(method), inner_(std::move(inner)), refusing_(std::move(refusing)) {}

  // Keeps the bytes: who sends them is known only in RunHandler().
  void* Deserialize(grpc_call* call, grpc_byte_buffer* request, grpc::Status* status,
                    void** handler_data) override;
  void RunHandler(const HandlerParameter& call) override;

 private:
  RequestGate* const gate_;
  const google::protobuf::MethodDescriptor* const method_;
  const Handler inner_;
  const std::function<Handler(const absl::Status& why)> refusing_;
};

// Ends a call that the gate has refused, which is measured and audited like others.
grpc::ServerUnaryReactor* RefuseCall(grpc::CallbackServerContext* context, const CallRules& rules,
                                     const google::protobuf::MethodDescriptor& method,
                                     const absl::Status& why);

// A handler that calls `method` of `service`.
template <typename Service, typename Request, typename Response>
LimitedHandler::Handler Limited(
    RequestGate* gate, const google::protobuf::MethodDescriptor* descriptor, Service* service,
    grpc::ServerUnaryReactor* (Service::*method)(grpc::CallbackServerContext*, const Request*,
                                                 Response*)) {
  using Inner = grpc::internal::CallbackUnaryHandler<Request, Response>;
  return std::make_unique<LimitedHandler>(
      gate, descriptor,
      std::make_unique<Inner>([service, method](grpc::CallbackServerContext* context,
                                                const Request* request, Response* response) {
        return (service->*method)(context, request, response);
      }),
      [gate, descriptor](const absl::Status& why) {
        return std::make_unique<Inner>([gate, descriptor, why](grpc::CallbackServerContext* context,
                                                               const Request*, Response*) {
          return RefuseCall(context, gate->rules(), *descriptor, why);
        });
      });
}

// The same for a method that answers with a stream.
template <typename Service, typename Request, typename Response>
LimitedHandler::Handler Limited(
    RequestGate* gate, const google::protobuf::MethodDescriptor* descriptor, Service* service,
    grpc::ServerWriteReactor<Response>* (Service::*method)(grpc::CallbackServerContext*,
                                                           const Request*)) {
  using Inner = grpc::internal::CallbackServerStreamingHandler<Request, Response>;
  return std::make_unique<LimitedHandler>(
      gate, descriptor,
      std::make_unique<Inner>(
          [service, method](grpc::CallbackServerContext* context, const Request* request) {
            return (service->*method)(context, request);
          }),
      [gate, descriptor](const absl::Status& why) {
        return std::make_unique<Inner>(
            [gate, descriptor, why](grpc::CallbackServerContext*, const Request*) {
              return Stream<Response>::Refuse(gate->rules(), descriptor->name().c_str(), why);
            });
      });
}

// The method of a service with this name, both without "nsa.v1.".
const google::protobuf::MethodDescriptor* MethodOf(const std::string& service,
                                                   const std::string& method);

// Puts methods of `service` behind the gate: what is returned takes a method's name and the method.
// `mark` is the service's MarkMethodCallback(), which only it may call.
template <typename Service, typename Mark>
auto Limiter(RequestGate* gate, Service* service, const std::string& name, Mark mark) {
  return [=](const char* method_name, auto method) {
    const auto* const descriptor = MethodOf(name, method_name);
    mark(descriptor->index(), Limited(gate, descriptor, service, method).release());
  };
}

}  // namespace nsa::server
