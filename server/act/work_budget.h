// How long a request may work that reads a submitter's files: until nobody waits for it, the
// coordinator goes down, or its time is over. The numbers of files and bytes have limits of their
// own (docs/limits.md); these do not say how fast a disk answers.
#pragma once

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace nsa::server {

// Of a submit, a check or a resume, and of a start, which nobody waits for.
inline constexpr absl::Duration kRequestWork = absl::Minutes(2);
inline constexpr absl::Duration kLaunchWork = absl::Minutes(5);

class WorkBudget {
 public:
  // `left` says that nobody waits any more; it stays true once it is. Null: somebody always does.
  WorkBudget(const Clock& clock, absl::Duration most, std::function<bool()> left)
      : clock_(clock), most_(most), ends_(clock.Monotonic() + most), left_(std::move(left)) {}

  // Once true, it stays true. Then the work ends at once, and its result must not be used.
  bool Over() const { return (left_ && left_()) || clock_.Monotonic() >= ends_; }

  // OK until then. Afterwards Cancelled if nobody waits, ResourceExhausted if the time is over.
  absl::Status Check() const;

 private:
  const Clock& clock_;
  const absl::Duration most_;
  const absl::Duration ends_;
  const std::function<bool()> left_;
};

}  // namespace nsa::server
