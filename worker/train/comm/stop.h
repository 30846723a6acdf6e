// How all ranks stop after the same step, and record the same steps for a profile. They learn of a
// request at different times, from their launch or over their control socket. Once per step they
// exchange what they know, and from the same reports every rank draws the same conclusion.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "nsa/v1/worker.pb.h"
#include "worker/train/comm/comm.h"

namespace nsa::train {

// The stop request that this rank has received. Thread-safe.
class StopState {
 public:
  static constexpr int64_t kNever = int64_t{1} << 52;  // a step that no run reaches; exact in fp64

  // Accepts a request, which replaces an earlier one unless that is stronger: GRACEFUL is stronger
  // than AT_STEP. InvalidArgument when mode or step is invalid; Unimplemented for STOP_MODE_NOW:
  // the agent then kills the worker.
  absl::Status Request(const v1::StopRequest& request);

  // The step after which to stop: 0 for as soon as possible, kNever without a request.
  int64_t stop_after() const;

 private:
  mutable Mutex mutex_;
  v1::StopMode mode_ ABSL_GUARDED_BY(mutex_) = v1::STOP_MODE_UNSPECIFIED;
  int64_t at_step_ ABSL_GUARDED_BY(mutex_) = kNever;
};

// What one rank sends the others after a step.
struct RankReport {
  double loss = 0;  // mean over this rank's tokens
  bool finite = true;
  int64_t stop_after = StopState::kNever;
  bool too_slow = false;   // the throughput guard has fired
  bool exhausted = false;  // no data is left for another step
  double profile = 0;      // names the trace that this rank is asked for, exact in fp64; 0: none
};

// What all ranks conclude.
struct Agreement {
  double loss = 0;  // mean over all ranks, summed in rank order
  bool finite = true;
  bool stop = false;
  bool at_step = false;  // the request was to stop after exactly this step
  bool too_slow = false;
  bool exhausted = false;  // the data of at least one rank has ended; synthetic tokens never end
  bool profile = false;    // all ranks are asked for the same trace: it begins with a later step
};

// Pure: the same on every rank.
Agreement Conclude(std::span<const RankReport> reports, int64_t step);

// Sends this rank's report. Returns every rank's report, in rank order.
absl::StatusOr<std::vector<RankReport>> Exchange(Comm* comm, const RankReport& mine);

// Returns every rank's values, in rank order: [world][values.size()].
absl::StatusOr<std::vector<double>> Gather(Comm* comm, std::string_view name,
                                           std::span<const double> values);

}  // namespace nsa::train
