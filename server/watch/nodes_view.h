// What clients are shown of machines.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "nsa/v1/coordinator.pb.h"
#include "server/decide/rule/cordon.h"
#include "server/store/fleet.h"
#include "server/store/job_store.h"

namespace nsa::server {

// One machine, with the jobs that are placed on it and its cordon.
v1::Node OneNode(const NodeView& view, const std::vector<JobPtr>& active, const Cordons& cordons);

// The reply of ListNodes: one page, by name. A cordoned machine that is not among `nodes` is in it
// too, as ABSENT. InvalidArgument for a negative page size.
absl::StatusOr<v1::ListNodesResponse> NodesView(const std::vector<NodeView>& nodes,
                                                const std::vector<JobPtr>& active,
                                                const Cordons& cordons,
                                                const v1::ListNodesRequest& request);

}  // namespace nsa::server
