// Ranks in a ring, each with a TCP connection to the next and one from the previous.
//
// Connecting: each rank listens, on the loopback interface unless another address is given, and
// writes its address and a random token into the rendezvous folder. It connects to the next rank,
// sends that rank's token, and accepts the one connection that sends its own token; everything else
// that connects is closed. The folder is private, so other users cannot connect. What the ranks
// send is neither encrypted nor authenticated later on: between machines the network must be
// trusted.
//
// Each connection carries data in one direction. When a rank dies, both of its connections close;
// its neighbours detect that at once and end, too, and so on around the ring.
#pragma once

#include <filesystem>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/fd.h"
#include "worker/train/comm/comm.h"

namespace nsa::train {

struct RingOptions {
  int rank = 0;
  int world_size = 2;             // 2 or more
  std::filesystem::path meeting;  // rendezvous folder of this start of this gang only
  ListenAt listen;
  absl::Duration timeout;
};

class TcpRing {
 public:
  // Connects to both neighbours. DeadlineExceeded with PEER_LOST when one does not connect in time,
  // Unavailable with PEER_LOST when the next cannot be connected to; both name the two ranks and
  // the address. FailedPrecondition when another process has already used the folder as this rank,
  // or when no port is free. InvalidArgument for an address that this machine does not have.
  static absl::StatusOr<TcpRing> Meet(const RingOptions& options);

  // Sends `out` to the next rank while it receives `in` from the previous one; either may be empty.
  // Unavailable with PEER_LOST when a neighbour closes its connection, DeadlineExceeded when this
  // takes longer than the timeout.
  absl::Status Transfer(std::span<const std::byte> out, std::span<std::byte> in);

  // Unavailable with PEER_LOST when a neighbour has closed its connection; never waits.
  absl::Status Check();

 private:
  TcpRing(Fd next, Fd previous, absl::Duration timeout)
      : next_(std::move(next)), previous_(std::move(previous)), timeout_(timeout) {}

  Fd next_;      // written only
  Fd previous_;  // read only
  absl::Duration timeout_;
};

}  // namespace nsa::train
