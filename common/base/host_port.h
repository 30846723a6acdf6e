// Addresses HOST:PORT of TCP, [HOST]:PORT where HOST is an IPv6 address.
#pragma once

#include <netdb.h>
#include <sys/socket.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/fd.h"

namespace nsa {

struct HostPort {
  std::string host;  // a name or a numeric address, without the brackets
  std::string port;  // digits, from 0 to 65535
};

// InvalidArgument, naming `what`, for everything else.
absl::StatusOr<HostPort> ParseHostPort(const std::string& what, const std::string& address);

// The same for a server that asks nobody for a password, so that only programs of this machine may
// reach it: 127.0.0.1, also written localhost. Not [::1], which civetweb, as the distribution has
// it, does not speak. InvalidArgument for every other host.
absl::StatusOr<HostPort> ParseLoopback(const std::string& what, const std::string& address);

// The addresses of a host, by getaddrinfo(3): a list with at least one. Unavailable with the reason
// alone. May take seconds where it asks a name server.
using SocketAddresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;
absl::StatusOr<SocketAddresses> AddressesOf(const HostPort& at);

// A connection, which does not block; not valid when there was none within `patience`.
Fd ConnectTo(const sockaddr* address, socklen_t bytes, absl::Duration patience);

}  // namespace nsa
