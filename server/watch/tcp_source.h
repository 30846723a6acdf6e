// Where a TCP connection comes from.
#pragma once

#include <sys/socket.h>

#include <string>

namespace nsa::server {

struct TcpSource {
  std::string address;    // "ipv4:10.0.0.7:51234", "ipv6:[::1]:80"
  std::string neighbour;  // who shares a limit: the host, in IPv6 the network of 64 bits
};

// An IPv4 address within IPv6 is an IPv4 address.
TcpSource SourceOf(const sockaddr_storage& from);

}  // namespace nsa::server
