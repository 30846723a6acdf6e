// How long the ranks of a job wait for each other.
#pragma once

#include "absl/time/time.h"

namespace nsa {

// A rank waits this long for the others, to meet them and in each collective; then it ends with
// PEER_LOST. `hang_timeout` is restart.hang_timeout_seconds. The coordinator acts earlier: at
// hang_timeout it takes stack dumps of all ranks, and then ends them (server/decide/hang_policy.h).
// So no rank has left when the stacks are taken. docs/runbook.md has all timeouts in their order.
inline absl::Duration PeerTimeout(absl::Duration hang_timeout) {
  return hang_timeout + absl::Seconds(10);
}

}  // namespace nsa
