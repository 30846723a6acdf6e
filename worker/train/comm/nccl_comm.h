// Sums, copies and exchanges between GPUs with NCCL. The ranks of a gang connect with the help of
// their host Comm, which broadcasts the communicator's unique id. Later the host Comm detects lost
// ranks, for which NCCL's kernels on the other ranks would wait for ever.
//
// No call blocks without a time limit. The communicator is non-blocking; to wait for the GPU, use
// WaitFor(), which checks NCCL's state, the other ranks and the clock. A lost peer gives
// Unavailable, a peer that is late DeadlineExceeded, both with PEER_LOST. After either error the
// communicator is aborted and cannot be used any more.
//
// Results are repeatable: there is one algorithm and one protocol (see SetEnvironment() in
// nccl_library.h), so for a given machine and world size the order of summation is fixed, and every
// rank receives the same bits.
//
// No CUDA header is needed: memory and streams are void*.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/run/status_page.h"
#include "worker/train/comm/comm.h"
#include "worker/train/comm/nccl_library.h"

namespace nsa::train {

struct NcclOptions {
  Comm* host = nullptr;                       // connects the same ranks; outlives the communicator
  absl::Duration timeout = absl::Minutes(5);  // for connecting, and for each wait
  std::string library;                        // path of NCCL's library; empty: search (nccl::Load)
  StatusPage* status_page = nullptr;          // shows what this rank waits for; may be null
};

// Device memory with values of one type.
struct NcclValues {
  enum class Type { kFloat32, kFloat64, kBfloat16 };
  void* data = nullptr;
  int64_t count = 0;
  Type type = Type::kFloat32;
};

// `bytes` bytes to another rank, and as many from it; device memory.
struct NcclTransfer {
  int peer = 0;
  const void* send = nullptr;
  void* receive = nullptr;
  int64_t bytes = 0;
};

// `bytes` bytes of rank `root`, which are to be on every rank; device memory.
struct NcclPiece {
  const void* from = nullptr;  // read on `root` only
  void* to = nullptr;
  int64_t bytes = 0;
  int root = 0;
};

// One thread at a time.
class NcclComm {
 public:
  // Connects to the other ranks, each on its own current CUDA device. FailedPrecondition when
  // nccl::SetEnvironment() has not been called.
  static absl::StatusOr<std::unique_ptr<NcclComm>> Connect(const NcclOptions& options);

  // Destroys the communicator. Destroy CUDA graphs that hold its collectives first: otherwise NCCL
  // waits for them. Returns after a few seconds in any case.
  ~NcclComm();

  int rank() const { return options_.host->rank(); }
  int world_size() const { return options_.host->world_size(); }

  // values ← Σ over ranks, on every rank; values in device memory. Enqueues on `stream` (a
  // cudaStream_t, which may be capturing). Every rank enqueues the same collectives in the same
  // order. Sums of bf16 are rounded to nearest after each addition.
  absl::Status AllReduceSum(std::string_view name, float* values, int64_t count, void* stream) {
    return AllReduceSum(name, {.data = values, .count = count}, stream);
  }
  absl::Status AllReduceSum(std::string_view name, const NcclValues& values, void* stream);

  // The same on rank `root` only; the values of other ranks stay as they are.
  absl::Status ReduceSum(std::string_view name, const NcclValues& values, int root, void* stream);

  // Copies `bytes` bytes of device memory, `from` on rank `root`, to `to` on every rank; `from` of
  // other ranks is not read. On `root` both may be the same.
  absl::Status Broadcast(std::string_view name, const void* from, void* to, int64_t bytes, int root,
                         void* stream);

  // Broadcasts several pieces as one collective.
  absl::Status Broadcast(std::string_view name, std::span<const NcclPiece> pieces, void* stream);

  // Sends and receives at the same time. Enqueues on `stream`, as AllReduceSum() does. The peers of
  // `transfers` enqueue theirs with this rank, each in the same order between two ranks; ranks that
  // are in none need not call it. `transfers` may have any number of pairs for a peer, but no
  // pair with this rank itself.
  absl::Status Exchange(std::string_view name, std::span<const NcclTransfer> transfers,
                        void* stream);

  // Waits until `done` returns true, e.g. because an event behind the collectives has happened. An
  // error of `done` ends the wait and is returned. But if a peer is found to be lost shortly after
  // it, the loss is returned as the cause.
  absl::Status WaitFor(std::string_view name, const std::function<absl::StatusOr<bool>()>& done);

  // Restarts the timeout of the wait in progress. To be called after progress, or while the GPU
  // does work that does not depend on other ranks.
  void Touch() { touched_ = clock_.Monotonic(); }

  // The communicator's error, if any; never waits.
  absl::Status Check();

  // Ends collectives in progress, without waiting for that; their results are undefined.
  // Idempotent.
  void Abort();

  // "NCCL 2.28.9 (/usr/local/cuda/lib/libnccl.so.2), ring, simple, network IB, through
  // NET/IB/GDRDMA and P2P/CUMEM", for env.json. Connections are known after the first sum.
  std::string description() const;

  // Number of collectives enqueued so far; a collective in a graph counts once.
  int64_t sequence() const { return sequence_; }

 private:
  class Detached;

  NcclComm(nccl::Library library, const NcclOptions& options);
  absl::Status Join();
  absl::Status ToStatus(nccl::Result result, std::string_view call) const;
  absl::Status AsyncState(bool* in_progress);
  absl::Status Settle(std::string_view call, nccl::Result result);
  absl::Status Enqueue(std::string_view name, std::string_view call,
                       const std::function<nccl::Result()>& enqueue);
  absl::Status EnqueueGroup(std::string_view name, const std::function<absl::Status()>& enqueue);
  absl::Status InGroup(const std::function<absl::Status()>& enqueue);
  absl::Status WaitUntilDone(const std::function<absl::StatusOr<bool>()>& done);
  absl::Status Late() const;
  void End(nccl::Result (*call)(nccl::Communicator));

  const nccl::Library library_;
  const NcclOptions options_;
  const std::string description_;
  const RealClock clock_;
  nccl::Communicator communicator_ = nullptr;
  std::unique_ptr<Detached> ending_;  // the call that ends the communicator
  absl::Duration touched_;            // when the wait in progress last made progress
  absl::Status broken_;               // the first error; all later calls return it
  int64_t sequence_ = 0;
};

}  // namespace nsa::train
