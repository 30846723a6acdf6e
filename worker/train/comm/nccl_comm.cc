#include "worker/train/comm/nccl_comm.h"

#include <sched.h>

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "worker/train/comm/nccl_log.h"

namespace nsa::train {
namespace {

constexpr absl::Duration kSpin = absl::Microseconds(200);     // a wait first polls without sleep
constexpr absl::Duration kPause = absl::Microseconds(20);     // between later polls
constexpr absl::Duration kPeerCheck = absl::Milliseconds(2);  // between checks of NCCL and peers
constexpr absl::Duration kPatience = absl::Seconds(5);        // for the library's shutdown calls
// How long to look for a lost peer after an error of the GPU: a peer's death can show as such an
// error before its connection is closed.
constexpr absl::Duration kAfterError = absl::Seconds(2);

std::string InSeconds(absl::Duration duration) {
  return absl::StrFormat("%.0f s", absl::ToDoubleSeconds(duration));
}

int TypeOf(NcclValues::Type type) {
  switch (type) {
    case NcclValues::Type::kFloat32:
      return nccl::kFloat32;
    case NcclValues::Type::kFloat64:
      return nccl::kFloat64;
    case NcclValues::Type::kBfloat16:
      return nccl::kBfloat16;
  }
  return nccl::kFloat32;
}

}  // namespace

// Runs a call on its own thread. If the call never returns, the thread lives until the process
// ends.
class NcclComm::Detached {
 public:
  explicit Detached(std::function<void()> call) {
    std::thread([state = state_, call = std::move(call)] {
      call();
      MutexLock lock(&state->mutex);
      state->done = true;
      state->changed.SignalAll();
    }).detach();
  }

  // Waits for `patience` at most. Whether the call has returned.
  bool WaitFor(absl::Duration patience) const {
    const RealClock clock;
    const absl::Duration end = clock.Monotonic() + patience;
    MutexLock lock(&state_->mutex);
    while (!state_->done) {
      const absl::Duration left = end - clock.Monotonic();
      if (left <= absl::ZeroDuration()) return false;
      state_->changed.WaitFor(&state_->mutex, left);
    }
    return true;
  }

 private:
  struct State {
    Mutex mutex;
    CondVar changed;
    bool done ABSL_GUARDED_BY(mutex) = false;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

NcclComm::NcclComm(nccl::Library library, const NcclOptions& options)
    : library_(std::move(library)),
      options_(options),
      description_(absl::StrCat(library_.description(), ", ring, simple")) {}

NcclComm::~NcclComm() {
  if (communicator_ != nullptr) End(library_.destroy);
  if (ending_ != nullptr && !ending_->WaitFor(kPatience)) {
    spdlog::warn("NCCL: the communicator has not ended after {}; left behind",
                 InSeconds(kPatience));
  }
  nccl::ReadLog();
}

void NcclComm::Abort() {
  if (communicator_ != nullptr) End(library_.abort);
}

std::string NcclComm::description() const {
  const std::string transport = nccl::TransportText(nccl::ReadLog());
  return absl::StrCat(description_, transport.empty() ? "" : ", ", transport);
}

absl::Status NcclComm::ToStatus(nccl::Result result, std::string_view call) const {
  if (result == nccl::kSuccess || result == nccl::kInProgress) return absl::OkStatus();
  const char* detail = communicator_ == nullptr ? nullptr : library_.last_error(communicator_);
  std::string text =
      absl::StrCat(absl::string_view(call.data(), call.size()), ": ", library_.error_string(result),
                   " (", detail == nullptr || *detail == '\0' ? "no details" : detail, ")");
  switch (result) {
    case nccl::kRemoteError:
      return ReasonError(absl::StatusCode::kUnavailable, Reason::kPeerLost,
                         absl::StrCat(text, "; see the other ranks' logs"));
    case nccl::kInvalidArgument:
    case nccl::kInvalidUsage:
      return absl::FailedPreconditionError(absl::StrCat("NCCL: ", text, "; see this rank's log"));
    default:
      return absl::InternalError(absl::StrCat("NCCL: ", text, "; see this rank's log"));
  }
}

absl::Status NcclComm::Late() const {
  return ReasonError(absl::StatusCode::kDeadlineExceeded, Reason::kPeerLost,
                     absl::StrCat("NCCL: not done after ", InSeconds(options_.timeout),
                                  " (restart.hang_timeout_seconds); see the other ranks' logs"));
}

// Returns the error that the communicator's own threads have reported.
absl::Status NcclComm::AsyncState(bool* in_progress) {
  nccl::Result state = nccl::kSuccess;
  NSA_RETURN_IF_ERROR(
      ToStatus(library_.async_error(communicator_, &state), "ncclCommGetAsyncError"));
  *in_progress = state == nccl::kInProgress;
  return ToStatus(state, "NCCL's own threads");
}

absl::Status NcclComm::Check() {
  if (!broken_.ok()) return broken_;
  NSA_RETURN_IF_ERROR(options_.host->CheckPeers());
  bool in_progress = false;
  return AsyncState(&in_progress);
}

// Polls `done` until it is true. Errors and the timeout end the wait earlier.
absl::Status NcclComm::WaitUntilDone(const std::function<absl::StatusOr<bool>()>& done) {
  const absl::Duration began = clock_.Monotonic();
  absl::Duration checked = began;
  touched_ = began;
  while (true) {
    const absl::StatusOr<bool> is_done = done();
    NSA_RETURN_IF_ERROR(is_done.status());
    if (*is_done) return absl::OkStatus();
    const absl::Duration now = clock_.Monotonic();
    if (now - checked >= kPeerCheck) {
      nccl::ReadLog();
      NSA_RETURN_IF_ERROR(Check());
      checked = now;
    }
    if (now - touched_ >= options_.timeout) return Late();
    now - began < kSpin ? static_cast<void>(sched_yield()) : absl::SleepFor(kPause);
  }
}

// Waits for the end of a call. With a non-blocking communicator a call may continue after it has
// returned, and the next call must wait for its end.
absl::Status NcclComm::Settle(std::string_view call, nccl::Result result) {
  NSA_RETURN_IF_ERROR(ToStatus(result, call));
  if (result != nccl::kInProgress) return absl::OkStatus();
  return WaitUntilDone([this]() -> absl::StatusOr<bool> {
    bool in_progress = false;
    NSA_RETURN_IF_ERROR(AsyncState(&in_progress));
    return !in_progress;
  });
}

absl::Status NcclComm::Join() {
  nccl::UniqueId id;
  if (options_.host->rank() == 0) {
    NSA_RETURN_IF_ERROR(ToStatus(library_.get_unique_id(&id), "ncclGetUniqueId"));
  }
  NSA_RETURN_IF_ERROR(
      options_.host->Broadcast("nccl_unique_id", 0, std::as_writable_bytes(std::span(id.bytes))));
  nccl::Config config;
  const nccl::Result result = library_.init_rank(&communicator_, options_.host->world_size(), id,
                                                 options_.host->rank(), &config);
  if (options_.status_page != nullptr) options_.status_page->EnterCollective("nccl_connect");
  broken_ = Settle("ncclCommInitRankConfig", result);
  nccl::ReadLog();
  if (options_.status_page != nullptr) options_.status_page->LeaveCollective();
  if (!broken_.ok()) Abort();
  return broken_;
}

// Makes a call of NCCL that enqueues one collective.
absl::Status NcclComm::Enqueue(std::string_view name, std::string_view call,
                               const std::function<nccl::Result()>& enqueue) {
  if (!broken_.ok()) return broken_;
  ++sequence_;
  broken_ = Annotate(Settle(call, enqueue()), name);
  if (!broken_.ok()) Abort();
  return broken_;
}

absl::Status NcclComm::AllReduceSum(std::string_view name, const NcclValues& values, void* stream) {
  return Enqueue(name, "ncclAllReduce", [&] {
    return library_.all_reduce(values.data, values.data, static_cast<size_t>(values.count),
                               TypeOf(values.type), nccl::kSum, communicator_, stream);
  });
}

absl::Status NcclComm::ReduceSum(std::string_view name, const NcclValues& values, int root,
                                 void* stream) {
  return Enqueue(name, "ncclReduce", [&] {
    return library_.reduce(values.data, values.data, static_cast<size_t>(values.count),
                           TypeOf(values.type), nccl::kSum, root, communicator_, stream);
  });
}

absl::Status NcclComm::Broadcast(std::string_view name, const void* from, void* to, int64_t bytes,
                                 int root, void* stream) {
  return Enqueue(name, "ncclBroadcast", [&] {
    return library_.broadcast(from, to, static_cast<size_t>(bytes), nccl::kInt8, root,
                              communicator_, stream);
  });
}

absl::Status NcclComm::InGroup(const std::function<absl::Status()>& enqueue) {
  NSA_RETURN_IF_ERROR(ToStatus(library_.group_start(), "ncclGroupStart"));
  const absl::Status enqueued = enqueue();
  // Also after an error: a group must not stay open.
  const absl::Status settled = Settle("ncclGroupEnd", library_.group_end());
  return enqueued.ok() ? settled : enqueued;
}

// Makes the calls of `enqueue`, which enqueue one collective together.
absl::Status NcclComm::EnqueueGroup(std::string_view name,
                                    const std::function<absl::Status()>& enqueue) {
  if (!broken_.ok()) return broken_;
  ++sequence_;
  broken_ = Annotate(InGroup(enqueue), name);
  if (!broken_.ok()) Abort();
  return broken_;
}

absl::Status NcclComm::Broadcast(std::string_view name, std::span<const NcclPiece> pieces,
                                 void* stream) {
  return EnqueueGroup(name, [&] {
    absl::Status enqueued;
    for (const NcclPiece& p : pieces) {
      // Other ranks than the root send nothing, but NCCL wants an address of theirs.
      const void* const from = p.root == options_.host->rank() ? p.from : p.to;
      enqueued.Update(ToStatus(library_.broadcast(from, p.to, static_cast<size_t>(p.bytes),
                                                  nccl::kInt8, p.root, communicator_, stream),
                               "ncclBroadcast"));
    }
    return enqueued;
  });
}

absl::Status NcclComm::Exchange(std::string_view name, std::span<const NcclTransfer> transfers,
                                void* stream) {
  return EnqueueGroup(name, [&] {
    absl::Status enqueued;
    for (const NcclTransfer& t : transfers) {
      const auto bytes = static_cast<size_t>(t.bytes);
      enqueued.Update(ToStatus(
          library_.send(t.send, bytes, nccl::kUint8, t.peer, communicator_, stream), "ncclSend"));
      enqueued.Update(
          ToStatus(library_.receive(t.receive, bytes, nccl::kUint8, t.peer, communicator_, stream),
                   "ncclRecv"));
    }
    return enqueued;
  });
}

absl::Status NcclComm::WaitFor(std::string_view name,
                               const std::function<absl::StatusOr<bool>()>& done) {
  if (!broken_.ok()) return broken_;
  broken_ = WaitUntilDone(done);
  if (!broken_.ok() && !absl::IsUnavailable(broken_) && !absl::IsDeadlineExceeded(broken_)) {
    // Find out whether the loss of a peer has caused this rank's error.
    const absl::Duration end = clock_.Monotonic() + kAfterError;
    absl::Status peers;
    while (peers.ok() && clock_.Monotonic() < end) {
      peers = options_.host->CheckPeers();
      absl::SleepFor(kPeerCheck);
    }
    if (!peers.ok()) {
      broken_ = WithMessage(peers,
                            absl::StrCat(peers.message(), " (then here: ", broken_.message(), ")"));
    }
  }
  broken_ = Annotate(broken_, name);
  if (!broken_.ok()) Abort();
  return broken_;
}

void NcclComm::End(nccl::Result (*call)(nccl::Communicator)) {
  const nccl::Communicator communicator = std::exchange(communicator_, nullptr);
  if (broken_.ok()) broken_ = absl::FailedPreconditionError("NCCL: the communicator was ended");
  ending_ = std::make_unique<Detached>([call, communicator] { call(communicator); });
}

absl::StatusOr<std::unique_ptr<NcclComm>> NcclComm::Connect(const NcclOptions& options) {
  if (!nccl::EnvironmentIsSet()) {
    return absl::FailedPreconditionError(
        "NCCL: its settings are not made (NCCL_NVLS_ENABLE=0, NCCL_ALGO=Ring); call "
        "nccl::SetEnvironment() first thing in main()");
  }
  NSA_ASSIGN_OR_RETURN(nccl::Library library, nccl::Load(options.library));
  auto comm = std::unique_ptr<NcclComm>(new NcclComm(std::move(library), options));
  NSA_RETURN_IF_ERROR(Annotate(comm->Join(), "nccl_connect"));
  return comm;
}

}  // namespace nsa::train
