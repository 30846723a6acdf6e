#include "server/watch/nodes_view.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"

namespace nsa::server {
namespace {

constexpr int kLargestPage = 500;

const char* StateWord(const NodeView& view) {
  if (!view.other_store.empty()) return "OTHER_STORE";
  if (view.heartbeat_unix_nanos == 0) return "ABSENT";
  switch (view.state) {
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

// Adds the cordoned machines that have sent nothing.
std::vector<NodeView> WithAbsent(std::vector<NodeView> nodes, const Cordons& cordons) {
  const auto by_name = [](const NodeView& view) { return view.info.name(); };
  for (const auto& [name, cordon] : cordons) {
    const auto place = std::ranges::lower_bound(nodes, name, {}, by_name);
    if (place != nodes.end() && place->info.name() == name) continue;
    nodes.insert(place, NodeView())->info.set_name(name);
  }
  return nodes;
}

}  // namespace

v1::Node OneNode(const NodeView& view, const std::vector<JobPtr>& active, const Cordons& cordons) {
  v1::Node node;
  *node.mutable_info() = view.info;
  // The estimate from several heartbeats in place of what the last one said.
  node.mutable_info()->set_unix_nanos(
      view.clock_offset
          ? absl::ToUnixNanos(absl::FromUnixNanos(view.heartbeat_unix_nanos) + *view.clock_offset)
          : 0);
  node.set_state(StateWord(view));
  node.set_store_id(view.other_store);
  node.set_heartbeat_unix_nanos(view.heartbeat_unix_nanos);
  for (const JobPtr& job : active) Count(*job, &node);
  const auto cordon = cordons.find(view.info.name());
  if (cordon != cordons.end()) *node.mutable_cordon() = cordon->second;
  return node;
}

absl::StatusOr<v1::ListNodesResponse> NodesView(const std::vector<NodeView>& nodes,
                                                const std::vector<JobPtr>& active,
                                                const Cordons& cordons,
                                                const v1::ListNodesRequest& request) {
  if (request.page_size() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size: ", request.page_size(), " (at least 0); use 0 for the default"));
  }
  const int limit =
      request.page_size() == 0 ? kLargestPage : std::min(request.page_size(), kLargestPage);
  v1::ListNodesResponse response;
  size_t bytes = 0;
  for (const NodeView& view : WithAbsent(nodes, cordons)) {
    if (view.info.name() <= request.page_token()) continue;
    if (response.nodes_size() == limit || bytes > limits::kPageBytes) {
      response.set_next_page_token(response.nodes().rbegin()->info().name());
      break;
    }
    *response.add_nodes() = OneNode(view, active, cordons);
    bytes += response.nodes().rbegin()->ByteSizeLong();
  }
  return response;
}

}  // namespace nsa::server
