// Stands before the HTTP server, ends TLS where other machines reach it, and gives it whole
// requests only. A client that sends half a request, or one slowly, occupies nothing but its
// connection here; what has its own answer (health and metrics) never waits for a thread of that
// server, whoever holds them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/rpc/tls_server.h"
#include "server/watch/handshake_shares.h"

namespace nsa::server {

struct HttpFrontLimits {
  int connections = 512;  // the oldest without a whole request makes room for a new one
  int passed_on = 160;    // at a time; others wait
  // A neighbour with a token is trusted for an hour.
  HandshakeShares::Limits handshakes;
  // An eighth and a sixteenth of the descriptors that this process may open, at most the above.
  static HttpFrontLimits OfThisProcess();
};

class HttpFront {
 public:
  // The whole reply to a request, by its head. `quick` is called for every request, on the thread
  // that serves all connections; empty: another answers, because the request may be answered.
  // `slow` answers what AsksFor /metrics, on a thread of its own.
  using Answer = std::function<std::string(std::string_view head)>;
  // Takes a whole request, body included, and the socket on which to answer it and then to close
  // it. False, and closes it, when it takes no more at present.
  using Server = std::function<bool(Fd to, std::string request)>;

  struct Options {
    std::vector<Fd> listeners;     // they do not block
    std::optional<TlsServer> tls;  // none: in the clear
    Server server;
    Answer quick;
    Answer slow;
    HttpFrontLimits limits;
  };

  // `clock` measures how long a client may take.
  HttpFront(Options options, const Clock& clock);
  ~HttpFront();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Where the head of a request ends, after its empty line; 0: not yet.
size_t EndOfHead(std::string_view bytes);

// How much of `bytes` is a whole request, body included; 0: more must come. A request without a
// Content-Length has no body. `refusal` is set to a status line for a request that is too large, or
// whose body has no length.
size_t WholeRequest(std::string_view bytes, std::string* refusal);

// Whether a head asks with GET or HEAD for a path, with or without a query.
bool AsksFor(std::string_view head, std::string_view path);

// The value of a header, by its name in any case, without spaces around it; empty: none.
std::string_view HeaderOf(std::string_view head, std::string_view name);

}  // namespace nsa::server
