// TCP ports and unix sockets.
#pragma once

#include <sys/un.h>

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

// Listens on a unix socket whose file only this user and root can open (mode 0600). The socket does
// not block. Invalid, with errno, when it cannot, e.g. because there is a file.
Fd ListenOnUnix(const sockaddr_un& address);

// The port of a socket that is bound to an IPv4 or IPv6 address.
int PortOf(int fd);

}  // namespace nsa
