// How often something may happen, or how much of something may be used.
#pragma once

#include "absl/time/time.h"

namespace nsa::server {

// `burst` at once, `rate` a second in the long run. Times are of a monotonic clock.
class Bucket {
 public:
  Bucket(double rate, double burst) : rate_(rate), burst_(burst), level_(burst) {}

  // Takes one. False, and takes none, when less than one is left at `now`.
  bool Take(absl::Duration now);

  // For what is known only afterwards: whether anything is left at `now`, and what was used of it,
  // which may be more than was left.
  bool Left(absl::Duration now);
  void Use(double amount) { level_ -= amount; }
  // Whether it is as it was made.
  bool Full(absl::Duration now);

 private:
  void Fill(absl::Duration now);

  const double rate_;
  const double burst_;
  double level_;
  absl::Duration last_ = -absl::InfiniteDuration();
};

}  // namespace nsa::server
