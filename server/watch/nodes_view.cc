#include "server/watch/nodes_view.h"

#include <algorithm>

namespace nsa::server {
namespace {

const char* StateWord(RankView::Node state) {
  switch (state) {
    case RankView::Node::kReady:
      return "READY";
    case RankView::Node::kLost:
      return "LOST";
    default:
      return "UNKNOWN";
  }
}

void Count(const v1::StoredJob& job, v1::Node* node) {
  bool here = false;
  for (const v1::RankPlacement& place : job.placements()) {
    if (place.node() != node->info().name()) continue;
    here = true;
    if (place.cuda_device().empty()) {
      node->set_cpu_slots_used(node->cpu_slots_used() + 1);
    } else {
      node->set_gpus_used(node->gpus_used() + 1);
    }
  }
  if (here) node->add_job_ids(job.job().id());
}

}  // namespace

v1::ListNodesResponse NodesView(const std::vector<NodeView>& nodes,
                                const std::vector<JobPtr>& active) {
  v1::ListNodesResponse response;
  for (const NodeView& view : nodes) {
    v1::Node& node = *response.add_nodes();
    *node.mutable_info() = view.info;
    node.set_state(StateWord(view.state));
    node.set_heartbeat_unix_nanos(view.heartbeat_unix_nanos);
    for (const JobPtr& job : active) Count(*job, &node);
  }
  return response;
}

}  // namespace nsa::server
