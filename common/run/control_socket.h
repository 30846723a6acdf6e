// The control socket: how an agent asks a worker to stop. A unix stream socket that the worker
// listens on; each message is 4 bytes of little-endian length and a serialised ControlRequest or
// ControlReply, of at most 64 KiB. One request a connection. Paths may be longer than sockaddr_un
// allows: their folders are opened through /proc/self/fd. The socket is its user's alone (0600).
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nsa/v1/worker.pb.h"

namespace nsa {

// Answers requests on a thread of its own until destroyed.
class ControlServer {
 public:
  using Handler = std::function<v1::ControlReply(const v1::ControlRequest&)>;

  // `handler` is called on the server's thread, one request at a time; it must not block on
  // training. Replaces a stale socket file. A peer that sends no whole request within a second, or
  // too large a one, is hung up on.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(const std::filesystem::path& path,
                                                              Handler handler);
  virtual ~ControlServer() = default;
};

// One request, one reply. Unavailable when nobody listens or the peer hangs up, DeadlineExceeded
// after `timeout` (a stopped worker), DataLoss when the reply is not one.
absl::StatusOr<v1::ControlReply> ControlCall(const std::filesystem::path& path,
                                             const v1::ControlRequest& request,
                                             absl::Duration timeout);

}  // namespace nsa
