// A machine as preflight sees it.
#pragma once

#include "common/preflight/preflight.h"
#include "nsa/v1/fleet.pb.h"

namespace nsa::server {

MachineView MachineViewOf(const v1::NodeInfo& info);

}  // namespace nsa::server
