// How an attempt to deliver something ended, and what follows. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "common/http/http.h"

namespace nsa::server {

struct Outcome {
  enum Kind {
    kDelivered,
    kAgain,    // may succeed later
    kRefused,  // the same message would be refused again
  } kind = kDelivered;
  // In words, for logs and people: "HTTP 503", "exit code 75: mailbox full". Without secrets.
  std::string said;
  std::optional<absl::Duration> wait;  // the receiver asks for this pause
};

// The longest pause that a receiver may ask for by Retry-After; a longer one is shortened to it.
inline constexpr absl::Duration kLongestAsked = absl::Hours(1);

// HTTP: 2xx is delivered; no answer, 408, 425, 429 and 5xx are tried again (Retry-After of 429 and
// 503 is obeyed); everything else, redirects too, is refused. `url` is where it went: nothing of
// its path or query appears in `said`, even if the answer repeats it.
Outcome JudgeReply(const nsa::HttpReply& reply, std::string_view url, absl::Time now);

// A mail program: exit code 0 is delivered, 65, 67 and 68 of sysexits.h (no such address) are
// refused, everything else is tried again.
Outcome JudgeExit(int code, std::string_view said);

// The pause before the next attempt after `failures` failed ones in a row, at least 1: from 1 s,
// doubled each time, at most 5 minutes, and at least what the receiver asked for. `random` in [0,
// 1) spreads it by ±25 %.
absl::Duration PauseAfter(int failures, double random, const Outcome& outcome);

// An event is given up when it is a day old and nothing was delivered for an hour: a restart, or a
// clock that was set, gives up nothing at once.
bool IsGivenUp(absl::Duration age, absl::Duration failing_for);

}  // namespace nsa::server
