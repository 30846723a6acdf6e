// Makes the reply of ListNodes: one page. InvalidArgument for a negative page size.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "nsa/v1/coordinator.pb.h"
#include "server/store/fleet.h"
#include "server/store/job_store.h"

namespace nsa::server {

absl::StatusOr<v1::ListNodesResponse> NodesView(const std::vector<NodeView>& nodes,
                                                const std::vector<JobPtr>& active,
                                                const v1::ListNodesRequest& request);

}  // namespace nsa::server
