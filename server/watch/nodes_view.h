// Makes the reply of ListNodes.
#pragma once

#include <vector>

#include "nsa/v1/coordinator.pb.h"
#include "server/store/fleet.h"
#include "server/store/job_store.h"

namespace nsa::server {

v1::ListNodesResponse NodesView(const std::vector<NodeView>& nodes,
                                const std::vector<JobPtr>& active);

}  // namespace nsa::server
