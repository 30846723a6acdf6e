// The control socket: an agent uses it to ask a worker to stop. It is a unix stream socket on which
// the worker listens. Each message is a 4-byte little-endian length and a serialised ControlRequest
// or ControlReply of at most 64 KiB. There is one request per connection. Paths may be longer than
// sockaddr_un allows: their folders are opened through /proc/self/fd. Only the worker's user can
// connect (mode 0600). A caller connects only to a socket that belongs to the owner of its folder
// (run_file.h): nobody can lead it to another worker.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nsa/v1/worker.pb.h"

namespace nsa {

// Answers requests on its own thread until it is destroyed.
class ControlServer {
 public:
  using Handler = std::function<v1::ControlReply(const v1::ControlRequest&)>;

  // `handler` is called on the server's thread, one request at a time; it must not block on
  // training. Replaces an old socket file. The connection is closed if the peer does not send a
  // complete request within a second or sends one that is too large.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(const std::filesystem::path& path,
                                                              Handler handler);
  virtual ~ControlServer() = default;
};

// Sends one request and returns the reply. Unavailable if no process listens or the peer closes the
// connection; DeadlineExceeded after `timeout` (e.g. a stopped worker); DataLoss if the reply is
// malformed.
absl::StatusOr<v1::ControlReply> ControlCall(const std::filesystem::path& path,
                                             const v1::ControlRequest& request,
                                             absl::Duration timeout);

}  // namespace nsa
