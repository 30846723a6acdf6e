// What the ranks of one generation, taken together, have come to. Pure.
//
// When one rank dies the others lose it as a peer and die too, often before the first death has
// been seen. So the cause is the first rank that ended on its own, and PEER_LOST is a consequence.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "nsa/v1/fleet.pb.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa::server {

// One rank, as far as it is known.
struct RankView {
  int32_t rank = 0;
  enum class Node { kReady, kUnknown, kLost } node = Node::kUnknown;
  std::string node_name;
  // Since its machine was last heard of, or since this coordinator started.
  absl::Duration silence;
  // A heartbeat arrived since the ranks were last told what to do, so an absent worker is absent.
  bool heard_since_told = false;
  // What is known of its slot was measured since then; the driver is not asked for each heartbeat.
  bool measured_since_told = false;
  // The worker was in a heartbeat of this generation before.
  bool seen_before = false;
  std::optional<v1::WorkerObservation> worker;
  // Its last words, when they have arrived.
  std::optional<v1::WorkerFinished> finished;
  // When it ended: of the last words, else when the end was first seen. 0 while it runs.
  int64_t ended_unix_nanos = 0;
  int64_t first_step = 0;  // steps done when this generation began
};

// Why a gang has to end.
struct Failure {
  std::string reason;           // a word of common/base/reason.h, or one that a newer worker sent
  std::string text;             // for people, names the rank
  int32_t rank = -1;            // the rank it came from
  bool final = false;           // a restart would fail again
  bool infrastructure = false;  // the machine's fault, not the job's: does not count
  bool refused = false;         // nothing was begun, since what the job needs is not there now
};

struct GangVerdict {
  enum class Kind {
    kUnknown,    // something is not known and nothing is known to be wrong: wait
    kStarting,   // some ranks are not up yet
    kRunning,    // every rank is up
    kCompleted,  // every rank ended with all steps done
    kStopped,    // every rank ended as asked
    kFailed,     // a rank ended otherwise; `failure` says why
  };
  Kind kind = Kind::kUnknown;
  std::optional<Failure> failure;  // with kFailed
  v1::WorkerFinished words;        // with kCompleted and kStopped: rank 0's last words
  // No process of the gang is left, as far as can be known (those of a lost machine count as gone).
  bool gone = false;
};

GangVerdict Judge(const std::vector<RankView>& ranks);

// Whether a reason is a fault of the machine or of another rank; false for an unknown word.
bool IsMachineFault(const std::string& word);

// How one ended rank failed; nothing when it ended well or still runs.
std::optional<Failure> FailureOf(const RankView& rank);

}  // namespace nsa::server
