// The ranks that share sequences (resources.context_parallel). N consecutive ranks form a group and
// have the same rows of a batch; rank c of the group, 0 to N − 1, has tokens [c·S/N, (c+1)·S/N) of
// each. For the attention they exchange tokens for heads (DeepSpeed-Ulysses, arXiv 2309.14509).
//
// An interface, because the model knows nothing of networks: step/ranks/context_ranks.h connects
// ranks, and tests connect models of one process.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/exec.h"

namespace nsa::train {

class ContextGroup {
 public:
  // Memory of the device: `bytes` bytes to a rank of the group, and as many from it.
  struct Piece {
    int32_t rank = 0;  // in the group; this rank's own are copied
    const void* send = nullptr;
    void* receive = nullptr;
    int64_t bytes = 0;
  };

  virtual ~ContextGroup() = default;

  virtual int32_t size() const = 0;   // N
  virtual int32_t index() const = 0;  // c

  // Sends and receives all pieces; every rank of the group calls it at the same point, with pieces
  // that mirror each other: as many for each rank, of the same sizes, in ascending order of ranks.
  // Blocks that are sent and those that are received must not overlap. On a GPU it enqueues on the
  // stream of `exec`, which may be capturing. Errors of the communication, e.g. Unavailable with
  // PEER_LOST.
  virtual absl::Status Exchange(const Exec& exec, std::span<const Piece> pieces) = 0;
};

}  // namespace nsa::train
