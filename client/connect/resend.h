// Calls that may be sent again: the coordinator recognizes a repeated request_id.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/connect/follow.h"
#include "client/connect/session.h"

namespace nsa::client {

// A random UUID.
absl::StatusOr<std::string> NewRequestId();

// Makes a call, and up to two more while the coordinator is unavailable. `call` returns a StatusOr.
template <typename Call>
auto Resend(Session& session, Call call) -> decltype(call()) {
  constexpr int kMaxSends = 3;
  Backoff backoff;
  for (int sends = 1;; ++sends) {
    auto response = call();
    if (!absl::IsUnavailable(response.status()) || sends == kMaxSends) return response;
    if (!backoff.Wait(&session.interrupt())) return absl::CancelledError("interrupted");
  }
}

}  // namespace nsa::client
