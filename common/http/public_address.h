// Which addresses are those of the public internet. Pure.
#pragma once

#include <sys/socket.h>

namespace nsa {

// False for loopback, private (RFC 1918, fc00::/7), link-local, shared (100.64/10), multicast and
// unspecified addresses, for what is reserved, and for IPv4 addresses of that kind within IPv6.
bool IsPublicAddress(const sockaddr& address);

}  // namespace nsa
