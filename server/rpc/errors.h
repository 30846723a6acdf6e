// Turns an absl::Status into the grpc::Status that is sent.
#pragma once

#include "absl/status/status.h"
#include "grpcpp/grpcpp.h"

namespace nsa::server {

// Like ToGrpc() of common/rpc/rpc.h, with the reason (common/base/reason.h) and the violations
// (act/request_error.h) that the status carries.
grpc::Status ToWire(const absl::Status& status);

}  // namespace nsa::server
