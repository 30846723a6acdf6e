// Violations of a request's fields. Like reasons (common/base/reason.h) they are a payload of an
// absl::Status; rpc/errors.h puts them into the reply.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace nsa::server {

// Type URL of the payload, a google.rpc.BadRequest.
inline constexpr char kViolationsUrl[] = "nsa.dev/violations";

// Adds a violation of a request's field.
absl::Status WithViolation(absl::Status status, const std::string& field,
                           const std::string& description);

}  // namespace nsa::server
