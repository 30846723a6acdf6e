// Who may send requests: programs of this machine, and of all pages in a browser the server's own.
//
// The server asks nobody for a password, so it listens on loopback only. A page of another site
// that is open in a browser of this machine could still reach it, directly or through a name of its
// own that leads here (DNS rebinding). Its requests carry that name as their Host, or an Origin
// that is not this server.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nsa::train::serve {

// An address to listen on.
struct Listen {
  std::string host = "127.0.0.1";
  int port = 0;  // 0: a free one
};

// Reads "127.0.0.1:8000" or "localhost:8000", by ParseLoopback() (common/base/host_port.h).
absl::StatusOr<Listen> ReadListen(const std::string& address);

// The headers of a request that say where it comes from; null when they are not there.
struct Origins {
  const char* host = nullptr;            // Host
  const char* origin = nullptr;          // Origin
  const char* sec_fetch_site = nullptr;  // Sec-Fetch-Site
};

// An error with the HTTP status 421 unless Host is 127.0.0.1, localhost or [::1], with any port (a
// tunnel has one of its own) or none; with 403 when the request comes from a page of another site:
// Origin, where there is one, must be http:// and the Host, and Sec-Fetch-Site same-origin or none.
absl::Status CheckOrigins(const Origins& origins);

}  // namespace nsa::train::serve
