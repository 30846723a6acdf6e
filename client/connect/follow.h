// Streams that continue after a restart of the coordinator.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "client/connect/session.h"

namespace nsa::client {

// Time between two attempts: 0.2 s, then twice as long each time, at most 1 s.
class Backoff {
 public:
  // Waits; false when interrupted.
  bool Wait(Interrupt* interrupt);
  void Reset() { next_ = absl::Milliseconds(200); }

 private:
  absl::Duration next_ = absl::Milliseconds(200);
};

// Calls `attempt` (one stream, which continues where the last one broke) until a stream has ended
// and the job `id` has ended too. While the coordinator cannot be reached it waits, and prints one
// note per outage. Other errors and Ctrl-C end it; with an empty `id` (all jobs) nothing else does.
absl::Status Follow(Session& session, const std::string& id,
                    const std::function<absl::Status()>& attempt);

}  // namespace nsa::client
