#include "server/rpc/message_limit.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/run/unpacked_bytes.h"
#include "server/rpc/permission.h"

namespace nsa::server {
namespace {

using google::protobuf::Descriptor;

// What less takes is not counted as a request: calls in progress are bounded by their answers.
constexpr int64_t kCounted = 64 << 10;
// Of answers, for gRPC's part of a call, and for what a stream has read ahead.
constexpr int64_t kOfCall = 16 << 10;
constexpr int64_t kOfStream = 128 << 10;
constexpr char kReadFirst[] = "read the answers of other calls, or make fewer at a time";
absl::StatusOr<int64_t> CostOf(const Descriptor& type, grpc_byte_buffer* request) {
  grpc_byte_buffer_reader reader;
  if (request == nullptr || grpc_byte_buffer_reader_init(&reader, request) == 0) return 0;
  const grpc_slice all = grpc_byte_buffer_reader_readall(&reader);
  const auto cost =
      UnpackedBytes(type, std::string_view(reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(all)),
                                           GRPC_SLICE_LENGTH(all)));
  grpc_slice_unref(all);
  grpc_byte_buffer_reader_destroy(&reader);
  if (cost.has_value()) return *cost;
  return absl::ResourceExhaustedError(absl::StrCat("request: too many elements (at most ",
                                                   kElementsOfAnyMessage, " and one per ",
                                                   kBytesOfAnElement, " bytes); send fewer"));
}

}  // namespace

RequestGate::RequestGate(const CallRules& rules)
    : rules_(&rules),
      requests_({.what = "request", .advice = "wait for the answers of others, or send less"}),
      of_people_({.what = "answer", .advice = kReadFirst, .of_all = int64_t{256} << 20}),
      // No machine must fall silent because others do not read.
      of_agents_({.what = "answer", .advice = kReadFirst, .of_all = INT64_MAX}) {}

absl::StatusOr<RequestGate::Admitted> RequestGate::Admit(
    const grpc::CallbackServerContext& context, const google::protobuf::MethodDescriptor& method,
    grpc_byte_buffer* request) {
  const auto caller = rules_->auth.Check(context, method.name());
  const bool known = caller.ok() || absl::IsPermissionDenied(caller.status());
  const size_t limit = RequestLimit(method.name());
  if (!known || limit == 0) return caller.status();
  const size_t bytes = request == nullptr ? 0 : grpc_byte_buffer_length(request);
  if (bytes > limit) {
    return absl::ResourceExhaustedError(absl::StrCat("request: ", bytes, " bytes (at most ", limit,
                                                     " for ", method.name(), "); send less"));
  }
  NSA_ASSIGN_OR_RETURN(const int64_t cost, CostOf(*method.input_type(), request));
  Admitted admitted;
  const std::string name = caller.ok() ? caller->name : "";
  // A machine must not fall silent because others report much; its size and elements are limited.
  if (cost >= kCounted && method.name() != "Heartbeat") {
    NSA_ASSIGN_OR_RETURN(admitted.request, requests_.Take(name, cost));
  }
  if (!caller.ok() || caller->local) return admitted;  // or it is the coordinator's own user
  admitted.answers =
      std::make_shared<AnswerShare>(caller->role == v1::ROLE_AGENT ? of_agents_ : of_people_, name,
                                    method.server_streaming() ? kOfStream : kOfCall);
  NSA_RETURN_IF_ERROR(admitted.answers->Hold(0));
  return admitted;
}

void* LimitedHandler::Deserialize(grpc_call*, grpc_byte_buffer* request, grpc::Status*, void**) {
  return request;
}

void LimitedHandler::RunHandler(const HandlerParameter& call) {
  auto* request = static_cast<grpc_byte_buffer*>(call.request);
  const auto* const context = static_cast<grpc::CallbackServerContext*>(call.server_context);
  auto admitted = gate_->Admit(*context, *method_, request);
  // A handler is needed until it has begun the call.
  const Handler refusing = admitted.ok() ? nullptr : refusing_(admitted.status());
  if (!admitted.ok()) {
    if (request != nullptr) grpc_byte_buffer_destroy(request);
    request = grpc_raw_byte_buffer_create(nullptr, 0);
  }
  grpc::internal::MethodHandler& handler = admitted.ok() ? *inner_ : *refusing;
  grpc::Status status;
  void* data = nullptr;
  void* const unpacked = handler.Deserialize(call.call->call(), request, &status, &data);
  RequestGate::Admitted held = admitted.ok() ? *std::move(admitted) : RequestGate::Admitted();
  const AnswerShare::Scope scope(held.answers);
  // gRPC calls and drops the last argument when the messages of the call are gone.
  handler.RunHandler({call.call, call.server_context, unpacked, status, data,
                      [held = std::move(held), next = call.call_requester] { next(); }});
}

grpc::ServerUnaryReactor* RefuseCall(grpc::CallbackServerContext* context, const CallRules& rules,
                                     const google::protobuf::MethodDescriptor& method,
                                     const absl::Status& why) {
  std::optional<std::string> subject;
  if (IsAudited(method.name())) subject = "";  // it was not unpacked
  const UnaryCall call(context, rules, method.name().c_str(), std::move(subject));
  call.Finish(why);
  return call.reactor();
}

const google::protobuf::MethodDescriptor* MethodOf(const std::string& service,
                                                   const std::string& method) {
  return google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(
      absl::StrCat("nsa.v1.", service, ".", method));
}

}  // namespace nsa::server
