// All-reduces on the GPU, over NCCL. The ranks of a gang meet over their host Comm, which hands out
// the communicator's unique id and goes on to tell of ranks that are lost: a survivor's kernel
// would wait for them for ever.
//
// Nothing here blocks without an end. The communicator is a non-blocking one; whoever waits for the
// GPU does it in WaitFor(), which looks at NCCL's state, at the other ranks and at the clock.
// A lost peer is Unavailable, one that does not come in time DeadlineExceeded, both with PEER_LOST;
// after either the communicator is aborted and of no further use.
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
#include "common/status_page.h"
#include "worker/train/comm.h"

namespace nsa {

struct NcclOptions {
  Comm* host = nullptr;                       // of the same ranks; outlives the communicator
  absl::Duration timeout = absl::Minutes(5);  // for meeting, and for each wait
  std::string library;                        // a file; empty: searched for (nccl::Load)
  StatusPage* status_page = nullptr;          // shows what is waited for; may be null
};

// One thread at a time.
class NcclComm {
 public:
  // Meets the other ranks, each on its own current CUDA device. FailedPrecondition when
  // nccl::SetEnvironment() has not been called.
  static absl::StatusOr<std::unique_ptr<NcclComm>> Connect(const NcclOptions& options);

  // Gives the communicator back; CUDA graphs that hold its collectives must be gone, or NCCL waits
  // for them. Is done after a few seconds in any case.
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

  // The wait in progress has come further, or what takes long is not the other ranks: its timeout
  // begins anew.
  void Touch();

  // Whether all is well; never waits.
  absl::Status Check();

  // Makes collectives that are under way end, with whatever they have; does not wait for it.
  // Idempotent.
  void Abort();

  // "NCCL 2.28.9 (/usr/local/cuda/lib/libnccl.so.2), ring, simple", for env.json.
  const std::string& description() const;

  // Collectives enqueued so far; one that a graph repeats counts once.
  int64_t sequence() const;

 private:
  class Impl;
  explicit NcclComm(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nsa
