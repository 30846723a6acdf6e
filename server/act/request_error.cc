#include "server/act/request_error.h"

#include "google/rpc/status.pb.h"

namespace nsa::server {

absl::Status WithViolation(absl::Status status, const std::string& field,
                           const std::string& description) {
  google::rpc::BadRequest request;
  if (const auto payload = status.GetPayload(kViolationsUrl); payload.has_value()) {
    request.ParseFromString(std::string(*payload));
  }
  auto* entry = request.add_field_violations();
  entry->set_field(field);
  entry->set_description(description);
  status.SetPayload(kViolationsUrl, absl::Cord(request.SerializeAsString()));
  return status;
}

}  // namespace nsa::server
