// Whether somebody accepts connections at an address, asked without gRPC.
#pragma once

#include <string>

#include "absl/time/time.h"

namespace nsa::agent {

// Connects to a gRPC address (unix:PATH, unix-abstract:NAME, HOST:PORT, also with dns:///, ipv4: or
// ipv6:) and hangs up. Waits at most `patience` for each address of the host, and as long as the
// system takes to look its name up.
bool AcceptsConnections(const std::string& address, absl::Duration patience);

}  // namespace nsa::agent
