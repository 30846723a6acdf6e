#include "server/rpc/errors.h"

#include <optional>
#include <string>
#include <vector>

#include "common/base/reason.h"
#include "common/rpc/rpc.h"
#include "google/rpc/status.pb.h"
#include "server/act/request_error.h"

namespace nsa::server {
namespace {

std::vector<FieldViolation> ViolationsOf(const absl::Status& status) {
  google::rpc::BadRequest request;
  if (const auto payload = status.GetPayload(kViolationsUrl); payload.has_value()) {
    request.ParseFromString(std::string(*payload));
  }
  std::vector<FieldViolation> violations;
  for (const auto& entry : request.field_violations()) {
    violations.push_back({entry.field(), entry.description()});
  }
  return violations;
}

}  // namespace

grpc::Status ToWire(const absl::Status& status) {
  const std::optional<Reason> reason = ReasonOf(status);
  return ToGrpc(status, reason.has_value() ? Word(*reason) : "", ViolationsOf(status));
}

}  // namespace nsa::server
