// Stopping together. Each rank hears of a stop at a time of its own, in its launch or on its
// control socket; once a step all ranks exchange what they know, and from the same reports every
// rank draws the same conclusion.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "nsa/v1/worker.pb.h"
#include "worker/train/comm.h"

namespace nsa {

// What this rank has been asked. Thread-safe.
class StopState {
 public:
  static constexpr int64_t kNever = int64_t{1} << 52;  // a step that no run reaches; exact in fp64

  // Takes a request in. A gentler request than the one in force changes nothing. InvalidArgument
  // for one that makes no sense; Unimplemented for STOP_MODE_NOW, which is the agent's SIGKILL.
  absl::Status Request(const v1::StopRequest& request);

  // The step after which to stop: 0 for at once, kNever without a request.
  int64_t stop_after() const;

 private:
  mutable Mutex mutex_;
  v1::StopMode mode_ ABSL_GUARDED_BY(mutex_) = v1::STOP_MODE_UNSPECIFIED;
  int64_t at_step_ ABSL_GUARDED_BY(mutex_) = kNever;
};

// What one rank tells the others in a step.
struct RankReport {
  double loss = 0;  // mean over this rank's tokens
  bool finite = true;
  int64_t stop_after = StopState::kNever;
  bool too_slow = false;   // the throughput guard has spoken
  bool exhausted = false;  // the data has no further step
};

// What all conclude.
struct Agreement {
  double loss = 0;  // mean over all ranks, summed in rank order
  bool finite = true;
  bool stop = false;
  bool at_step = false;  // the stop was asked for this very step, not at once
  bool too_slow = false;
  bool exhausted = false;  // on one rank; another may train on synthetic tokens, without an end
};

// Pure: the same on every rank.
Agreement Conclude(std::span<const RankReport> reports, int64_t step);

// Every rank's report, in rank order.
absl::StatusOr<std::vector<RankReport>> Exchange(Comm* comm, const RankReport& mine);

// Every rank's values, in rank order: [world][values.size()].
absl::StatusOr<std::vector<double>> Gather(Comm* comm, std::string_view name,
                                           std::span<const double> values);

}  // namespace nsa
