#include "server/errors.h"

#include "google/rpc/status.pb.h"

namespace nsa::server {
namespace {

constexpr char kReasonUrl[] = "nsa.dev/reason";
constexpr char kViolationsUrl[] = "nsa.dev/violations";

std::string Payload(const absl::Status& status, const char* url) {
  const auto payload = status.GetPayload(url);
  return payload.has_value() ? std::string(*payload) : "";
}

}  // namespace

absl::Status WithReason(absl::Status status, const std::string& reason) {
  status.SetPayload(kReasonUrl, absl::Cord(reason));
  return status;
}

absl::Status WithViolation(absl::Status status, const FieldViolation& violation) {
  google::rpc::BadRequest request;
  request.ParseFromString(Payload(status, kViolationsUrl));
  auto* entry = request.add_field_violations();
  entry->set_field(violation.field);
  entry->set_description(violation.description);
  status.SetPayload(kViolationsUrl, absl::Cord(request.SerializeAsString()));
  return status;
}

grpc::Status ToWire(const absl::Status& status) {
  google::rpc::BadRequest request;
  request.ParseFromString(Payload(status, kViolationsUrl));
  std::vector<FieldViolation> violations;
  for (const auto& entry : request.field_violations()) {
    violations.push_back({entry.field(), entry.description()});
  }
  return ToGrpc(status, Payload(status, kReasonUrl), violations);
}

}  // namespace nsa::server
