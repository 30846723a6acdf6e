#include "server/watch/handshake_shares.h"

#include <ctime>
#include <iterator>

namespace nsa::server {
namespace {

constexpr absl::Duration kTrust = absl::Hours(1);

}  // namespace

bool HandshakeShares::May(const std::string& neighbour, bool trusted, absl::Duration now) {
  Neighbour& own = Of(neighbour);
  return own.handshakes.Left(now) && (trusted || now < own.trusted_until || all_.Left(now));
}

void HandshakeShares::Note(const std::string& neighbour, bool trusted, absl::Duration processor,
                           absl::Duration now) {
  Neighbour& own = Of(neighbour);
  own.handshakes.Use(absl::ToDoubleSeconds(processor));
  if (!trusted && now >= own.trusted_until) all_.Use(absl::ToDoubleSeconds(processor));
}

void HandshakeShares::Trust(const std::string& neighbour, absl::Duration now) {
  Of(neighbour).trusted_until = now + kTrust;
}

void HandshakeShares::Forget(absl::Duration now) {
  for (auto each = neighbours_.begin(); each != neighbours_.end();) {
    Neighbour& neighbour = each->second;
    const bool kept = now < neighbour.trusted_until || !neighbour.handshakes.Full(now);
    each = kept ? std::next(each) : neighbours_.erase(each);
  }
}

absl::Duration ProcessorTimeOfThread() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

}  // namespace nsa::server
