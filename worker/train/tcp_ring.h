// Ranks in a ring, each with a TCP connection to the next and one from the previous.
//
// Meeting: each rank listens on the loopback interface and writes address and a random token into
// the rendezvous folder; it connects to the next rank, presents that rank's token, and takes the
// one connection that presents its own. The folder is private, so others cannot join.
//
// Bytes flow one way on a connection. A peer that dies closes both of its connections; its
// neighbours see that at once, end too, and so tell theirs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace nsa {

// An open descriptor; closes it.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();
  int get() const { return fd_; }

 private:
  int fd_;
};

struct RingOptions {
  int rank = 0;
  int world_size = 2;             // 2 or more
  std::filesystem::path meeting;  // a folder that one start of one gang uses, once
  absl::Duration timeout;
};

class TcpRing {
 public:
  // Meets the others. DeadlineExceeded with PEER_LOST when a neighbour does not come in time;
  // FailedPrecondition when this rank's place in the folder is taken.
  static absl::StatusOr<TcpRing> Meet(const RingOptions& options);

  // Sends `out` to the next rank while it receives `in` from the previous one; either may be empty.
  // Unavailable with PEER_LOST when a neighbour closes, DeadlineExceeded when this takes longer
  // than the timeout.
  absl::Status Transfer(std::span<const std::byte> out, std::span<std::byte> in);

  // Unavailable with PEER_LOST when a neighbour has closed its connection; never waits.
  absl::Status Check();

 private:
  TcpRing(Descriptor next, Descriptor previous, absl::Duration timeout)
      : next_(std::move(next)), previous_(std::move(previous)), timeout_(timeout) {}

  Descriptor next_;      // written only
  Descriptor previous_;  // read only
  absl::Duration timeout_;
};

}  // namespace nsa
