// The TCP port of the coordinator, or its unix socket: a gate of its own for each. The gate accepts
// connections, ends TLS, and passes on what they say, over a pair of sockets each, to gRPC, which
// never sees the port.
//
// gRPC 1.51 limits neither the connections of strangers nor what they make it keep: once the file
// descriptors are used up it accepts nothing more, and streams that are reset at once or header
// blocks that do not end grow without a limit. So the gate
//
//   * keeps descriptors in reserve: it has at most GateLimits::connections, a share of what the
//     process may open;
//   * tells clients that have made a call with a valid token from strangers. A stranger has to make
//     room, the one that has said least and is oldest first, and never a known client;
//   * ends connections that do not speak HTTP/2 in time, or more than their share (frame_watch.h);
//   * spends a part of its time on TLS handshakes, and of that a part on those of one address;
//   * holds at most 2 x 32 KiB of a connection. A client that does not read is not read from.
//
// Only the coordinator's user and root can open the unix socket. They need no token, so that
// everybody who has made a call is known there, and send as many frames as they like. gRPC would
// not say which of them calls; the gate gives each connection a name that does (unix_peer.h). Users
// are neighbours there, so none holds all connections. Those of this process, the self probe's, are
// always accepted.
//
// One thread of each gate does all this.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/fd.h"
#include "common/rpc/tls_files.h"
#include "server/watch/handshake_shares.h"

namespace nsa::server {

struct GateLimits {
  // How many connections there may be. Each takes three descriptors.
  int connections = 1'024;
  int strangers = 512;     // of these, without a valid token; on the unix socket without a call
  int of_neighbour = 512;  // of these, from one address (IPv6: one network of 64 bits) or user
  int strangers_of_neighbour = 256;
  // Streams of all strangers that have begun and not ended. One takes gRPC 25 KB; beyond, the
  // stranger with the most is ended.
  size_t open_streams = 8'000;
  HandshakeShares::Limits handshakes;
  absl::Duration greeting = absl::Seconds(10);  // until a client speaks HTTP/2, TLS included
  absl::Duration silence = absl::Minutes(1);    // of a stranger

  // A sixth of the descriptors that this process may open are connections of the TCP port and a
  // thirtieth those of the unix socket, at most 1,024 each, so that two fifths are left for
  // everything else. gRPC ends those of the unix socket that are silent, after 15 minutes.
  static GateLimits OfTcp();
  static GateLimits OfUnixSocket();
};

struct GateCounts {
  int known = 0;  // connections
  int strangers = 0;
  absl::Duration handshakes;  // the processor time of all so far
};

class Gate {
 public:
  struct Options {
    // host:port, or unix:PATH: a file there is replaced, and has mode 0600.
    std::string address;
    TlsFiles tls;  // without a certificate: plaintext
    GateLimits limits;
    // Called on the gate's thread for every connection that it ends or refuses, with the reason.
    std::function<void(const char* reason)> ended;
  };

  // Listens, and accepts nothing yet. Unavailable, naming the address and the cause.
  static absl::StatusOr<std::unique_ptr<Gate>> Open(Options options);

  // Begins. `hand_on` gets gRPC's end of each connection; its peer has a GateCallerName.
  void Start(std::function<void(Fd)> hand_on);

  // Closes the port, or removes the socket's file. Connections go on. When it returns, `hand_on` is
  // not called any more.
  void StopAccepting();

  // What gRPC has sent is still passed on, for at most a second.
  ~Gate();

  // With the actual port; of a unix socket as it was given.
  const std::string& address() const;
  GateCounts counts() const;

 private:
  class Impl;
  explicit Gate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nsa::server
