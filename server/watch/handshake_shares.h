// Whose TLS handshakes have had their share of a listener's thread. A handshake costs its server a
// millisecond and its client next to nothing.
#pragma once

#include <map>
#include <string>

#include "absl/time/time.h"
#include "server/watch/bucket.h"

namespace nsa::server {

// Used by one thread. A neighbour is a ConnectionSource::neighbour. Times are of a monotonic clock.
// No call but Forget() walks over neighbours.
class HandshakeShares {
 public:
  // Processor time of one neighbour's handshakes, and of those of all that are not trusted
  // together: as a share of one processor, and in seconds at once. Those beyond it wait.
  struct Limits {
    double of_neighbour = 0.1;
    double of_neighbour_burst = 0.25;
    double all = 0.3;
    double all_burst = 0.5;
  };

  explicit HandshakeShares(const Limits& limits)
      : limits_(limits), all_(limits.all, limits.all_burst) {}

  // Whether a handshake of this neighbour may go on, and the processor time that it then took.
  // `trusted`: one of its clients is known at present.
  bool May(const std::string& neighbour, bool trusted, absl::Duration now);
  void Note(const std::string& neighbour, bool trusted, absl::Duration processor,
            absl::Duration now);

  // It has a client with a valid token: it is trusted for an hour, also after its network was away.
  void Trust(const std::string& neighbour, absl::Duration now);

  // Forgets neighbours whose share is whole again. To be called several times a minute.
  void Forget(absl::Duration now);

 private:
  struct Neighbour {
    explicit Neighbour(const Limits& limits)
        : handshakes(limits.of_neighbour, limits.of_neighbour_burst) {}
    Bucket handshakes;
    absl::Duration trusted_until = -absl::InfiniteDuration();
  };
  Neighbour& Of(const std::string& name) {
    return neighbours_.try_emplace(name, limits_).first->second;
  }

  const Limits limits_;
  std::map<std::string, Neighbour> neighbours_;
  Bucket all_;
};

// The processor time that this thread has used.
absl::Duration ProcessorTimeOfThread();

}  // namespace nsa::server
