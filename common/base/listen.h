// TCP ports.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/fd.h"

namespace nsa {

// Listens on host:port ([host]:port for IPv6), on every address of the host as far as this machine
// has them, all with the same port. The sockets do not block. Unavailable, naming `what`, the
// address and the cause.
absl::StatusOr<std::vector<Fd>> ListenOnAll(const std::string& what, const std::string& address);

// The port of a socket that is bound to an IPv4 or IPv6 address.
int PortOf(int fd);

}  // namespace nsa
