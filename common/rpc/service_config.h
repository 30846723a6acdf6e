// gRPC's service config, which says which calls a client may send again.
#pragma once

#include <string>
#include <vector>

#include "google/protobuf/descriptor.h"

namespace nsa {

// The methods that may be sent again if a call did not reach the server: those with the option
// idempotency_level IDEMPOTENT (or NO_SIDE_EFFECTS) in the proto. A method without the option is
// not sent again: a late heartbeat, for example, would report an old state.
std::vector<const google::protobuf::MethodDescriptor*> RetriedMethods(
    const std::vector<const google::protobuf::FileDescriptor*>& files);

// The service config of our channels, as JSON: up to 4 attempts within about two seconds for each
// retried method of CoordinatorService and FleetService.
std::string ServiceConfig();

}  // namespace nsa
