// A small HTTP server with /metrics for Prometheus, /healthz for load balancers, and pages.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/watch/http.h"

namespace nsa::server {

class MetricsHttp {
 public:
  // `address` is host:port; port 0 picks a free port. `text` returns the body of /metrics;
  // `problem` is empty if /healthz is to answer 200, else what it answers with 503. `pages` answers
  // every other path; without it they are 404. All are called on threads of the server. Unavailable
  // when the port is taken.
  //
  // A request whose Host header is neither an IP address, localhost, this machine's host name nor
  // the host of `address` or `page_url` gets 421 and a text; the port does not matter. A request
  // must arrive within 5 s (http_front.h). Up to 96 are served at the same time, others wait, but
  // never those for /metrics, which have a thread of their own, nor those for /healthz. A body
  // needs a Content-Length.
  static absl::StatusOr<std::unique_ptr<MetricsHttp>> Start(const std::string& address,
                                                            std::function<std::string()> text,
                                                            std::function<std::string()> problem,
                                                            HttpHandler pages = nullptr,
                                                            const std::string& page_url = "");
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
