// Decides whether, and after which pause, a request is sent again.
#pragma once

#include <functional>
#include <random>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "worker/train/data/remote/options.h"

namespace nsa::train {

// How one attempt ended.
struct Outcome {
  enum Kind : uint8_t {
    kDone,
    kAgain,  // may succeed later
    kWrong,  // the answer is not what was asked for: tried a few times
  } kind = kDone;
  std::string fault;        // "HTTP 503"
  std::string retry_after;  // the header; empty: none
};

// Of one thing that is read.
class Attempts {
 public:
  // `sleep` waits and returns false if reading must end. All arguments must outlive the object.
  Attempts(const RemoteOptions& options, const std::string& name,
           const std::function<bool(absl::Duration)>& sleep);

  // Bytes arrived: patience and pauses begin again.
  void Progress();

  // Waits until the next attempt. DeadlineExceeded with Reason::kDataStalled if none follows
  // because there was no progress for too long, or the server asks to wait longer; DataLoss after
  // several wrong answers; Cancelled.
  absl::Status Pause(const Outcome& outcome);

 private:
  absl::Status GiveUp(const Outcome& outcome, absl::Duration waited) const;

  const RemoteOptions& options_;
  const std::string& name_;
  const std::function<bool(absl::Duration)>& sleep_;
  const RealClock clock_;
  std::minstd_rand random_{std::random_device{}()};
  absl::Duration progress_at_;
  int failed_ = 0;  // attempts since the last progress
  int wrong_ = 0;
};

}  // namespace nsa::train
