// The status page: a memory-mapped page in which each worker always writes what it is doing. It can
// be read even if the worker is stuck, stopped or dead. An update takes a few stores and no system
// call.
//
// The layout is fixed (a plain struct with its version in `magic`), because programs of different
// builds read each other's pages. A sequence lock protects each update: its number is odd while the
// page is being written.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace nsa {

enum class Phase : uint32_t {
  kStarting = 0,
  kLoadingCheckpoint,
  kWaitingForPeers,
  kData,
  kForward,
  kBackward,
  kReduce,
  kOptimizer,
  kEval,
  kCheckpoint,
  kTelemetry,
  kFinished,
};

// E.g. "forward"; "unknown(17)" for a value of a newer build.
std::string PhaseName(Phase phase);

// A copy of the content of a page.
struct WorkerStatus {
  int64_t pid = 0;
  int32_t rank = 0;
  int32_t world_size = 0;
  int64_t generation = 0;
  int64_t step = 0;        // steps done
  int32_t micro_step = 0;  // micro-batch of the step in progress, 0-based
  Phase phase = Phase::kStarting;
  int32_t layer = -1;      // 0-based; -1 outside the decoder blocks
  std::string kernel;      // name of the last kernel that was entered, or empty
  std::string collective;  // name of the collective that it waits for, or empty
  int64_t collective_sequence = 0;
  int64_t progress = 0;                 // increases with every update
  int64_t updated_monotonic_nanos = 0;  // CLOCK_MONOTONIC at the last update
  std::string telemetry_error;          // why some of its records are not written, or empty

  // "forward layer 7 kernel window_attention", human-readable.
  std::string Place() const;
  // "rank 1/2 gen 3 pid 4711: step 120 micro 1 forward layer 7 kernel window_attention, 0.2 s ago",
  // human-readable.
  std::string ToString(int64_t now_monotonic_nanos) const;
};

// Observes updates of a page, in the thread that makes them, after they are made. A profile uses
// it (worker/train/profile/host_recorder.h).
class PageObserver {
 public:
  virtual ~PageObserver() = default;
  virtual void OnPhase(Phase phase) = 0;
  virtual void OnMicroStep(int32_t micro_step) = 0;
  virtual void OnLayer(int32_t layer) = 0;
  virtual void OnKernel(std::string_view kernel) = 0;
  virtual void OnCollective(std::string_view name) = 0;  // empty: it has ended
};

// The worker's side. Only the training thread may make updates. A default-constructed StatusPage
// has its page in memory only.
class StatusPage {
 public:
  StatusPage();
  static absl::StatusOr<StatusPage> Create(const std::filesystem::path& path, int32_t rank,
                                           int32_t world_size, int64_t generation);
  StatusPage(StatusPage&& other) noexcept;
  StatusPage& operator=(StatusPage&& other) noexcept;
  ~StatusPage();

  void SetStep(int64_t step);
  void SetMicroStep(int32_t micro_step);
  void SetPhase(Phase phase);
  void SetLayer(int32_t layer);
  void SetKernel(std::string_view kernel);      // cut to 47 bytes
  void EnterCollective(std::string_view name);  // also clears the kernel
  void LeaveCollective();
  void SetTelemetryError(std::string_view error);  // cut to 511 bytes
  // Counts as progress without changing any other field, e.g. during a long evaluation.
  void Touch();

  // From now on `observer` gets the updates; null for nobody, which costs an update nothing. It
  // is borrowed. For the thread that makes the updates.
  void SetObserver(PageObserver* observer) { observer_ = observer; }

  struct Layout;

 private:
  explicit StatusPage(Layout* page) : page_(page) {}
  template <typename Store>
  void Update(Store store);  // runs `store` under the sequence lock

  Layout* page_;  // an owned mapping; nullptr after a move
  PageObserver* observer_ = nullptr;
};

// A consistent copy of a page, also of a dead or stopped process. Unavailable if the process died
// or was stopped during an update, NotFound if there is no file, DataLoss if the file is not a page
// of this version. Only a page that belongs to the owner of its folder is read (run_file.h). Texts
// are cleaned (clean_text.h): a page may hold any bytes, and a message with bytes that are not
// UTF-8 would be refused whole.
absl::StatusOr<WorkerStatus> ReadStatusPage(const std::filesystem::path& path);

}  // namespace nsa
