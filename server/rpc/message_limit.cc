#include "server/rpc/message_limit.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "server/rpc/permission.h"

namespace nsa::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr int64_t kElementsOfAnyMessage = 10'000;
constexpr int64_t kBytesOfAnElement = 8;
// What they take beside their contents.
constexpr int64_t kMessageBytes = 320;
constexpr int64_t kTextBytes = 64;
constexpr int64_t kUnknownBytes = 64;
constexpr int64_t kNumberBytes = 16;  // in a list that grows
// What less takes is not counted as a request: calls in progress are bounded by their answers.
constexpr int64_t kCounted = 64 << 10;
// Of answers, for gRPC's part of a call, and for what a stream has read ahead.
constexpr int64_t kOfCall = 16 << 10;
constexpr int64_t kOfStream = 128 << 10;
constexpr char kReadFirst[] = "read the answers of other calls, or make fewer at a time";
// Protobuf refuses messages that are nested deeper.
constexpr int kDeepest = 100;

// Reads what follows a tag of this wire type and skips it. False at the end and where the bytes are
// no message.
bool Skip(uint32_t tag, CodedInputStream* in, uint32_t* length) {
  uint64_t number = 0;
  *length = 0;
  switch (WireFormatLite::GetTagWireType(tag)) {
    case WireFormatLite::WIRETYPE_VARINT:
      return in->ReadVarint64(&number);
    case WireFormatLite::WIRETYPE_FIXED64:
      return in->Skip(sizeof(uint64_t));
    case WireFormatLite::WIRETYPE_FIXED32:
      return in->Skip(sizeof(uint32_t));
    case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
      return in->ReadVarint32(length) && in->Skip(static_cast<int>(*length));
    case WireFormatLite::WIRETYPE_START_GROUP:
    case WireFormatLite::WIRETYPE_END_GROUP:
      return true;  // what is in a group that is not known is counted one by one
  }
  return false;
}

enum class Kind { kUnknown, kMessage, kText, kNumbers, kNumber };

// What the parser makes of a field with this tag. One of another wire type than it has is unknown.
Kind KindOf(const FieldDescriptor* field, uint32_t tag) {
  if (field == nullptr) return Kind::kUnknown;
  const auto wire_type = WireFormatLite::GetTagWireType(tag);
  const auto own =
      WireFormatLite::WireTypeForFieldType(static_cast<WireFormatLite::FieldType>(field->type()));
  const bool delimited = wire_type == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
  if (delimited && field->is_packable()) return Kind::kNumbers;
  if (wire_type != own) return Kind::kUnknown;
  if (!delimited) return Kind::kNumber;
  return field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE ? Kind::kMessage : Kind::kText;
}

class Counter {
 public:
  explicit Counter(size_t bytes)
      : left_(kElementsOfAnyMessage + static_cast<int64_t>(bytes) / kBytesOfAnElement),
        cost_(static_cast<int64_t>(bytes)) {}

  int64_t cost() const { return cost_; }

  // False when there are too many elements.
  bool Count(const Descriptor& type, int depth, CodedInputStream* in) {
    while (const uint32_t tag = in->ReadTag()) {
      const FieldDescriptor* const field =
          type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
      const Kind kind = KindOf(field, tag);
      if (kind != Kind::kNumber && kind != Kind::kNumbers && --left_ < 0) return false;
      uint32_t length = 0;
      if (kind != Kind::kMessage) {
        if (!Skip(tag, in, &length)) return true;
        cost_ += CostOf(kind, length);
        continue;
      }
      cost_ += kMessageBytes;
      if (depth == kDeepest || !in->ReadVarint32(&length)) return true;
      const CodedInputStream::Limit limit = in->PushLimit(static_cast<int>(length));
      if (!Count(*field->message_type(), depth + 1, in)) return false;
      if (in->BytesUntilLimit() > 0) return true;
      in->PopLimit(limit);
    }
    return true;
  }

 private:
  static int64_t CostOf(Kind kind, uint32_t length) {
    if (kind == Kind::kUnknown) return kUnknownBytes;
    if (kind == Kind::kText) return kTextBytes;
    return kind == Kind::kNumber ? kNumberBytes : kNumberBytes * int64_t{length};
  }

  int64_t left_;
  int64_t cost_;
};

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

std::optional<int64_t> UnpackedBytes(const Descriptor& type, std::string_view bytes) {
  CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()),
                      static_cast<int>(bytes.size()));
  Counter counter(bytes.size());
  if (!counter.Count(type, 0, &in)) return std::nullopt;
  return counter.cost();
}

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
