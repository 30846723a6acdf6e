// The state of a gang: what the ranks of one generation amount to together. Pure.
//
// When one rank dies, the others lose it as a peer and die too, often before the first death has
// been reported. So the cause is the first rank that failed by itself, and PEER_LOST is a
// consequence.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "nsa/v1/fleet.pb.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa::server {

// What is known of one rank.
struct RankView {
  int32_t rank = 0;
  enum class Node { kReady, kUnknown, kLost } node = Node::kUnknown;
  std::string node_name;
  // Time since the last heartbeat of its machine, or since this coordinator started.
  absl::Duration silence;
  // A heartbeat has arrived since agents were told the job's current situation, so a worker that is
  // not in it does not exist.
  bool heard_since_told = false;
  // The free memory of its slot was measured since then. (Agents do not query the GPU driver for
  // every heartbeat.)
  bool measured_since_told = false;
  // The worker has been in a heartbeat in this generation.
  bool seen_before = false;
  std::optional<v1::WorkerObservation> worker;
  // Steps that the worker had done so long ago that their records should have arrived.
  int64_t steps_before = 0;
  // The worker's last record, once it has arrived.
  std::optional<v1::WorkerFinished> finished;
  // When it ended: the time of the last record, else when a heartbeat first reported the end. 0
  // while it runs.
  int64_t ended_unix_nanos = 0;
  bool started = false;    // its record of the start has arrived
  int64_t first_step = 0;  // steps done when this generation began
};

// Why a gang has to end.
struct Failure {
  std::string reason;           // a word of common/base/reason.h, or one that a newer worker sent
  std::string text;             // human-readable, names the rank
  int32_t rank = -1;            // the rank that failed first; -1: none in particular
  bool final = false;           // a restart would fail again
  bool infrastructure = false;  // a fault of the machine: does not count as a restart
  bool refused = false;  // the start was refused: something that the job needs is not there now
};

struct GangVerdict {
  enum class Kind {
    kUnknown,    // not enough is known, and nothing is known to be wrong: wait
    kStarting,   // some ranks are not up yet
    kRunning,    // every rank is up
    kCompleted,  // every rank ended with all steps done
    kStopped,    // every rank ended as asked
    kFailed,     // a rank failed; `failure` says why
  };
  Kind kind = Kind::kUnknown;
  std::optional<Failure> failure;  // with kFailed
  v1::WorkerFinished words;        // with kCompleted and kStopped: rank 0's last record
  // No process of the gang is left, as far as can be known (those of a lost machine count as gone).
  bool gone = false;
};

GangVerdict Judge(const std::vector<RankView>& ranks);

// Whether a reason is a fault of the machine or of another rank; false for an unknown word.
bool IsMachineFault(const std::string& word);

// How one rank failed. Empty when it ended well or still runs.
std::optional<Failure> FailureOf(const RankView& rank);

}  // namespace nsa::server
