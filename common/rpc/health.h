// The question whether a gRPC server answers at all.
#pragma once

#include "grpcpp/grpcpp.h"

namespace nsa {

// Calls grpc.health.v1.Health/Check with an empty request and waits for the answer, which is not
// read. OK, and any error that a server sends (UNIMPLEMENTED, say), shows that it can be reached.
grpc::Status AskHealth(grpc::ChannelInterface* channel, grpc::ClientContext* context);

}  // namespace nsa
