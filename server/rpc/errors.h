// From an absl::Status to the wire.
#pragma once

#include "absl/status/status.h"
#include "grpcpp/grpcpp.h"

namespace nsa::server {

// common/rpc/rpc.h ToGrpc() with the reason (common/base/reason.h) and the violations
// (act/request_error.h) that the status carries.
grpc::Status ToWire(const absl::Status& status);

}  // namespace nsa::server
