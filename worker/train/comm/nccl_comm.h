// All-reduces on the GPU with NCCL. The ranks of a gang meet over their host Comm, which broadcasts
// the communicator's unique id and later detects lost ranks: the kernels of the surviving ranks
// would wait for them for ever.
//
// No call blocks without a time limit. The communicator is non-blocking; to wait for the GPU, use
// WaitFor(), which checks NCCL's state, the other ranks and the clock. A lost peer is Unavailable,
// a peer that is late DeadlineExceeded, both with PEER_LOST; after either the communicator is
// aborted and cannot be used any more.
//
// Repeatable: one algorithm and protocol (see SetEnvironment() in nccl_library.h), so that for a
// given machine and world size sums have one order, and every rank receives the same bits.
//
// No CUDA header is needed: memory and streams are void*.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/run/status_page.h"
#include "worker/train/comm/comm.h"

namespace nsa {

struct NcclOptions {
  Comm* host = nullptr;                       // of the same ranks; outlives the communicator
  absl::Duration timeout = absl::Minutes(5);  // for meeting, and for each wait
  std::string library;                        // a file; empty: search for it (nccl::Load)
  StatusPage* status_page = nullptr;          // shows what is waited for; may be null
};

// One thread at a time.
class NcclComm {
 public:
  // Meets the other ranks, each on its own current CUDA device. FailedPrecondition when
  // nccl::SetEnvironment() has not been called.
  static absl::StatusOr<std::unique_ptr<NcclComm>> Connect(const NcclOptions& options);

  // Destroys the communicator. CUDA graphs that hold its collectives must be destroyed before, or
  // NCCL waits for them; returns after a few seconds in any case.
  ~NcclComm();

  int rank() const;
  int world_size() const;

  // values ← Σ over ranks, on every rank; float values in device memory. Enqueues on `stream` (a
  // cudaStream_t, which may be capturing). Every rank enqueues the same sums in the same order.
  absl::Status AllReduceSum(std::string_view name, float* values, int64_t count, void* stream);

  // Returns when `done` says so, e.g. that an event behind the collectives has happened. An error
  // of `done` ends the wait and is returned, unless it is the loss of a peer that has broken this
  // rank.
  absl::Status WaitFor(std::string_view name, const std::function<absl::StatusOr<bool>()>& done);

  // Restarts the timeout of the wait in progress: there was progress, or what takes long does not
  // depend on other ranks.
  void Touch();

  // The communicator's error, if any; never waits.
  absl::Status Check();

  // Ends collectives in progress, whatever their results; does not wait for it. Idempotent.
  void Abort();

  // "NCCL 2.28.9 (/usr/local/cuda/lib/libnccl.so.2), ring, simple", for env.json.
  const std::string& description() const;

  // Collectives enqueued so far; those in a graph count once.
  int64_t sequence() const;

 private:
  class Impl;
  explicit NcclComm(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nsa
