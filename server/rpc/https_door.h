// The HTTP port where other machines reach it: ends TLS, asks for a token, and passes requests on
// to the HTTP server on this machine's loopback (server/watch/metrics_http.h), one for each
// connection.
//
// A client needs no certificate: browsers and Prometheus have the token instead. One thread does
// all this. A client that sends half a request, or takes nothing of its reply, occupies nothing but
// its connection here, and not for long.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/rpc/tls_files.h"

namespace nsa::server {

class HttpsDoor {
 public:
  // At a time; the oldest without a whole request makes room, further ones are closed.
  static constexpr int kMostConnections = 128;

  struct Options {
    std::string address;  // host:port; port 0 picks a free port
    TlsFiles tls;
    std::string server;  // 127.0.0.1:port
    // Whether a request with this header Authorization may read; else it gets 401. Called on the
    // door's thread, for every path but /healthz.
    std::function<bool(std::string_view authorization)> may_read;
  };

  // Unavailable when the port is taken, or OpenSSL refuses the files.
  static absl::StatusOr<std::unique_ptr<HttpsDoor>> Open(Options options);
  ~HttpsDoor();

  // host:port with the actual port.
  const std::string& address() const;

 private:
  class Impl;
  explicit HttpsDoor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nsa::server
