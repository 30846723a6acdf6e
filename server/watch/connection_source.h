// Where a connection comes from.
#pragma once

#include <sys/socket.h>

#include <string>

namespace nsa::server {

struct ConnectionSource {
  // "ipv4:10.0.0.7:51234", "ipv6:[::1]:80"; of the unix socket "unix:1000" (rpc/gate/unix_peer.h).
  std::string address;
  // Who shares a limit: the host, in IPv6 the network of 64 bits; of the unix socket the user.
  std::string neighbour;
};

// Of a TCP connection. An IPv4 address within IPv6 is an IPv4 address.
ConnectionSource SourceOf(const sockaddr_storage& from);

}  // namespace nsa::server
