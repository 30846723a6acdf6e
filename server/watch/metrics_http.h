// A small HTTP server with /metrics for Prometheus, /healthz for load balancers, and pages: in the
// clear on loopback, over TLS and with a token where other machines reach it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/rpc/tls_files.h"
#include "server/watch/http.h"

namespace nsa::server {

class MetricsHttp {
 public:
  // The functions are called on threads of the server.
  struct Options {
    std::string address;                   // host:port; port 0 picks a free port
    std::function<std::string()> text;     // the body of /metrics
    std::function<std::string()> problem;  // what /healthz answers with 503; empty: it answers 200
    HttpHandler pages;                     // every other path; none: they are 404
    std::string page_url;
    std::optional<TlsFiles> tls;  // none: in the clear. Clients need no certificate.
    // Whether a request with this header Authorization may read; else it gets 401. Asked for every
    // path but /healthz; none: everyone may.
    std::function<bool(std::string_view authorization)> may_read;
  };

  // Unavailable when the port is taken, or OpenSSL refuses the files. `clock` measures how long a
  // client may take.
  //
  // A request whose Host header is neither an IP address, localhost, this machine's host name nor
  // the host of `address` or `page_url` gets 421 and a text; the port does not matter. A request
  // must arrive within 5 s, over TLS within 10 (http_front.h). Up to 96 are served at the same
  // time, others wait, but never those for /metrics, which have a thread of their own, nor those
  // for /healthz. A body needs a Content-Length.
  static absl::StatusOr<std::unique_ptr<MetricsHttp>> Start(Options options, const Clock& clock);
  ~MetricsHttp();

  // host:port with the actual port.
  const std::string& address() const { return address_; }

 private:
  struct Impl;
  MetricsHttp(std::unique_ptr<Impl> impl, std::string address);
  std::unique_ptr<Impl> impl_;
  const std::string address_;
};

}  // namespace nsa::server
