// What to do when heartbeats stay without an answer. Pure.
//
// A coordinator that is down needs patience only: nothing changes until somebody accepts
// connections at its address again. When somebody does and still no heartbeat is answered, the
// connection may be the fault: first it is replaced by a fresh one, again and again; then the agent
// ends, so that its service manager, or the coordinator for its local agent, starts it again. Its
// workers survive that.
#pragma once

#include "absl/time/time.h"

namespace nsa::agent {

// All times are of the monotonic clock and judged when the agent acts: after a pause of the machine
// it opens one fresh connection, and does not end.
struct Silence {
  absl::Duration since_answer;  // since the last answer to a heartbeat, or since the start
  absl::Duration since_opened;  // since the present connection was opened
  int fresh = 0;                // connections opened since that answer
  bool accepts = false;         // somebody accepts connections at the coordinator's address
};

struct SilenceLimits {
  absl::Duration patience = absl::Seconds(10);  // with each connection
  int fresh = 10;                               // connections that are tried before the end
};

enum class SilenceStep { kWait, kReopen, kEnd };

// Whether the present connection has had its time. Only then is `accepts` worth asking for.
bool IsOverdue(const Silence& silence, const SilenceLimits& limits);

SilenceStep NextStep(const Silence& silence, const SilenceLimits& limits);

}  // namespace nsa::agent
