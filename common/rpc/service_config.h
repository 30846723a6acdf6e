// Which calls a client may send again, as gRPC's service config.
#pragma once

#include <string>
#include <vector>

#include "google/protobuf/descriptor.h"

namespace nsa {

// The methods that may be sent again when the server was not reached: those whose option
// idempotency_level is IDEMPOTENT (or NO_SIDE_EFFECTS) in the proto. A method without the option is
// not sent again: a late heartbeat would report the past.
std::vector<const google::protobuf::MethodDescriptor*> RetriedMethods(
    const std::vector<const google::protobuf::FileDescriptor*>& files);

// The service config of our channels, as JSON: at most 4 attempts within about two seconds for the
// retried methods of CoordinatorService and FleetService.
std::string ServiceConfig();

}  // namespace nsa
