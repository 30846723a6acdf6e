// The limits of a request, checked before it is unpacked: who sends it, its bytes, and what it
// would take in memory (common/run/unpacked_bytes.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
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

// The method of a service with this name, both without "nsa.v1.".
const google::protobuf::MethodDescriptor* MethodOf(const std::string& service,
                                                   const std::string& method);

// The methods of a service, each behind its gate. They get `target`, which outlives their calls.
template <typename Target>
class Methods {
 public:
  using Context = grpc::CallbackServerContext;
  using Mark = std::function<void(int index, grpc::internal::MethodHandler* handler)>;
  template <typename Request>
  using SubjectOf = std::function<std::optional<std::string>(const Request& request)>;

  // `mark` is the service's MarkMethodCallback(), which only it may call.
  Methods(std::string service, RequestGate* gate, Target* target, Mark mark)
      : service_(std::move(service)), gate_(gate), target_(target), mark_(std::move(mark)) {}

  // Answers a method with what `work` returns. It runs on `executor`; null: on that of all calls.
  // `subject` says what a call changes (UnaryCall); null: nothing.
  template <typename Request, typename Response>
  void Unary(const char* name,
             absl::StatusOr<Response> (*work)(Target&, const Request&, const UnaryCall&),
             std::type_identity_t<SubjectOf<Request>> subject = nullptr,
             Executor* executor = nullptr) const {
    AddWork<Request, Response>(
        name,
        [work, target = target_](const Request& request, const UnaryCall& call) {
          return work(*target, request, call);
        },
        std::move(subject), executor);
  }
  template <typename Owner, typename Request, typename Response>
  void Unary(const char* name,
             absl::StatusOr<Response> (Owner::*work)(const Request&, const Caller&),
             std::type_identity_t<SubjectOf<Request>> subject = nullptr) const {
    AddWork<Request, Response>(
        name,
        [work, target = target_](const Request& request, const UnaryCall& call) {
          return (target->*work)(request, call.caller());
        },
        std::move(subject), nullptr);
  }

  // A method that makes its own UnaryCall.
  template <typename Request, typename Response>
  void Call(const char* name, grpc::ServerUnaryReactor* (*method)(Target&, Context*, const Request*,
                                                                  Response*)) const {
    AddUnary<Request, Response>(
        name,
        [method, target = target_](Context* context, const Request* request, Response* response) {
          return method(*target, context, request, response);
        });
  }

  // A method that answers with a stream.
  template <typename Request, typename Response>
  void Streaming(const char* name,
                 grpc::ServerWriteReactor<Response>* (*method)(Target&, Context*,
                                                               const Request*)) const {
    using Inner = grpc::internal::CallbackServerStreamingHandler<Request, Response>;
    const auto begin = [method, target = target_](Context* context, const Request* request) {
      return method(*target, context, request);
    };
    Add(name, std::make_unique<Inner>(begin), [rules = &gate_->rules(), name](const auto& why) {
      return std::make_unique<Inner>(
          [=](Context*, const Request*) { return Stream<Response>::Refuse(*rules, name, why); });
    });
  }

 private:
  template <typename Request, typename Response, typename Work>
  void AddWork(const char* name, Work work, SubjectOf<Request> subject, Executor* executor) const {
    const CallRules* const rules = &gate_->rules();
    Executor* const runs = executor == nullptr ? &rules->executor : executor;
    AddUnary<Request, Response>(
        name, [=](Context* context, const Request* request, Response* response) {
          const UnaryCall call(context, *rules, name, subject ? subject(*request) : std::nullopt);
          return call.RunOn<Response>(
              *runs, response, [=](const UnaryCall& known) { return work(*request, known); });
        });
  }

  template <typename Request, typename Response, typename Method>
  void AddUnary(const char* name, Method method) const {
    using Inner = grpc::internal::CallbackUnaryHandler<Request, Response>;
    const auto refusing = [rules = &gate_->rules(),
                           descriptor = MethodOf(service_, name)](const absl::Status& why) {
      return std::make_unique<Inner>([=](Context* context, const Request*, Response*) {
        return RefuseCall(context, *rules, *descriptor, why);
      });
    };
    Add(name, std::make_unique<Inner>(std::move(method)), refusing);
  }

  void Add(const char* name, LimitedHandler::Handler handler,
           std::function<LimitedHandler::Handler(const absl::Status& why)> refusing) const {
    const auto* const descriptor = MethodOf(service_, name);
    mark_(descriptor->index(),
          new LimitedHandler(gate_, descriptor, std::move(handler), std::move(refusing)));
  }

  const std::string service_;
  RequestGate* const gate_;
  Target* const target_;
  const Mark mark_;
};

}  // namespace nsa::server
