// Who holds the connections of a gate: which of them has to make room for one more, and whose
// TLS handshakes have had their share of the gate's thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "server/rpc/gate/gate.h"
#include "server/watch/handshake_shares.h"

namespace nsa::server {

// Used by the gate's thread only. A neighbour is a ConnectionSource::neighbour. Times are of a
// monotonic clock. No call but Forget() walks over connections or neighbours.
class Crowd {
  struct Neighbour;

 public:
  // One connection, as it is counted.
  class Member {
   public:
    bool known() const { return known_; }

   private:
    friend class Crowd;
    Member(uint64_t id, Neighbour* neighbour) : id_(id), neighbour_(neighbour) {}
    uint64_t id_;
    Neighbour* neighbour_;
    bool speaks_ = false;
    bool known_ = false;
  };

  explicit Crowd(const GateLimits& limits);

  // Whether one more of this neighbour exceeds no limit.
  bool HasRoom(const std::string& neighbour) const;
  // Who is to end for it: the stranger that has said least, of those the oldest; one of the
  // neighbour's own if it has too many, or any. None: only known clients are left.
  std::optional<uint64_t> Victim(const std::string& neighbour) const;

  // A stranger that has said nothing; later ones have a greater id.
  Member Add(uint64_t id, const std::string& neighbour);
  // What it has become; it is not a stranger again.
  void Note(Member* member, bool speaks, bool known);
  void Remove(const Member& member);

  int known() const { return members_ - strangers(); }
  int strangers() const { return static_cast<int>(strangers_.size()); }

  // HandshakeShares, in which a neighbour with a known client is trusted.
  bool MayHandshake(const Member& member, absl::Duration now);
  void NoteHandshake(const Member& member, absl::Duration processor, absl::Duration now);

  // Forgets neighbours without connections. To be called several times a minute.
  void Forget(absl::Duration now);

 private:
  // Those that have said nothing come first, and of them the oldest.
  using Strangers = std::set<std::pair<bool, uint64_t>>;
  struct Neighbour {
    std::string name;
    int connections = 0;
    Strangers strangers;

    bool HasKnown() const { return connections > static_cast<int>(strangers.size()); }
  };

  const Neighbour* Find(const std::string& name) const;
  bool HasTooMany(const Neighbour& neighbour) const;

  const GateLimits limits_;
  std::map<std::string, Neighbour> neighbours_;
  Strangers strangers_;
  int members_ = 0;
  HandshakeShares shares_;
};

}  // namespace nsa::server
