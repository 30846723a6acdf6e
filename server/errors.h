// Errors with a reason and field violations, which travel inside an absl::Status until a service
// puts them on the wire.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/rpc.h"
#include "grpcpp/grpcpp.h"

namespace nsa::server {

// Adds an UPPER_SNAKE reason.
absl::Status WithReason(absl::Status status, const std::string& reason);

// Adds a violation of a request's field.
absl::Status WithViolation(absl::Status status, const FieldViolation& violation);

// common/rpc.h ToGrpc() with what was added.
grpc::Status ToWire(const absl::Status& status);

}  // namespace nsa::server
