// Addresses as gRPC takes them, asked without gRPC: whether somebody accepts connections there, and
// the address of this machine that reaches them.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace nsa::agent {

// Connects to a gRPC address (unix:PATH, unix-abstract:NAME, HOST:PORT, also with dns:///, ipv4: or
// ipv6:) and hangs up. Waits at most `patience` for each address of the host, and as long as the
// system takes to look its name up.
bool AcceptsConnections(const std::string& address, absl::Duration patience);

// The numeric address of this machine by which it reaches HOST:PORT, as the routes are now; sends
// nothing. InvalidArgument for a unix socket, Unavailable without a route.
absl::StatusOr<std::string> AddressTowards(const std::string& address);

}  // namespace nsa::agent
