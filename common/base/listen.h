// TCP ports.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/fd.h"

namespace nsa {

// Listens on host:port ([host]:port for IPv6), on every address of the host as far as this machine
// has them, all with the same port; with `any_port` on a free one instead. The sockets do not
// block. Unavailable, naming `what`, the address and the cause; InvalidArgument as ParseHostPort().
absl::StatusOr<std::vector<Fd>> ListenOnAll(const std::string& what, const std::string& address,
                                            bool any_port = false);

// The port of a socket that is bound to an IPv4 or IPv6 address.
int PortOf(int fd);

}  // namespace nsa
