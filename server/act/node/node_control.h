// What operators can do with machines: cordon, drain, uncordon. The logic of
// coordinator_service.cc, without gRPC.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "nsa/v1/coordinator.pb.h"
#include "server/store/access_store.h"
#include "server/store/fleet.h"
#include "server/store/job_store.h"
#include "server/store/node/node_store.h"

namespace nsa::server {

// Thread-safe.
class NodeControl {
 public:
  // All are borrowed.
  NodeControl(NodeStore& nodes, const Fleet& fleet, const AccessStore& access,
              const JobStore& store, const Clock& clock)
      : nodes_(nodes), fleet_(fleet), access_(access), store_(store), clock_(clock) {}

  // Cordons a machine, with `drain` also drains it; replaces an earlier cordon. The cordon is on
  // disk when the result is OK. `by` is the caller's name. NotFound for a machine that this
  // coordinator does not know: it has sent no heartbeat since the coordinator started, has no
  // secret of its own, holds no job that has not ended, and is not cordoned. InvalidArgument.
  absl::StatusOr<v1::CordonNodeResponse> Cordon(const v1::CordonNodeRequest& request,
                                                const std::string& by);
  // OK for a machine that is not cordoned. NotFound as above.
  absl::StatusOr<v1::UncordonNodeResponse> Uncordon(const v1::UncordonNodeRequest& request);

 private:
  absl::Status CheckKnown(const std::string& node) const;
  v1::Node View(const std::string& node) const;

  NodeStore& nodes_;
  const Fleet& fleet_;
  const AccessStore& access_;
  const JobStore& store_;
  const Clock& clock_;
};

}  // namespace nsa::server
