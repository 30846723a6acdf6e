// Violations of a request's fields. They travel as a payload of an absl::Status, as reasons do
// (common/base/reason.h), until a service puts them on the wire (rpc/errors.h).
#pragma once

#include <string>

#include "absl/status/status.h"

namespace nsa::server {

// Payload of the violations: google.rpc.BadRequest.
inline constexpr char kViolationsUrl[] = "nsa.dev/violations";

// Adds a violation of a request's field.
absl::Status WithViolation(absl::Status status, const std::string& field,
                           const std::string& description);

}  // namespace nsa::server
