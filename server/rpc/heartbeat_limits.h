// The limits of what an agent reports (common/base/limits.h). Texts are cut:
// server/store/cut_texts.h.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "nsa/v1/fleet.pb.h"

namespace nsa::server {

// InvalidArgument for a name that no node may have.
absl::Status CheckNodeName(const std::string& name);

// InvalidArgument for a heartbeat with more bytes, GPUs or workers than a node may have, with an id
// that is too long, or with an invalid version of NCCL or hash.
absl::Status CheckHeartbeat(const v1::HeartbeatRequest& heartbeat);

}  // namespace nsa::server
