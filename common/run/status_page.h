// The status page: one memory-mapped page a worker, in which it says at every moment what it is
// doing, so that a stuck, stopped or dead worker can still be read from outside. Writing costs a
// few stores and never a system call.
//
// The layout is fixed (a plain struct, version in `magic`), since programs of different builds read
// each other's. Every update is made under a sequence lock: odd while the page is being written.
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

// "forward"; "unknown(17)" for a value of a newer build.
std::string PhaseName(Phase phase);

// What a page says, copied out.
struct WorkerStatus {
  int64_t pid = 0;
  int32_t rank = 0;
  int32_t world_size = 0;
  int64_t generation = 0;
  int64_t step = 0;        // steps done
  int32_t micro_step = 0;  // of the step in progress, 0-based
  Phase phase = Phase::kStarting;
  int32_t layer = -1;      // 0-based; -1 outside the blocks
  std::string kernel;      // name of the kernel entered last, or empty
  std::string collective;  // name of the collective that is waited for, or empty
  int64_t collective_sequence = 0;
  int64_t progress = 0;                 // rises with every update
  int64_t updated_monotonic_nanos = 0;  // CLOCK_MONOTONIC at the last update
  std::string telemetry_error;          // why its records are not all written, or empty

  // "forward layer 7 kernel window_attention", for people.
  std::string Place() const;
  // "rank 1/2 gen 3 pid 4711: step 120 micro 1 forward layer 7 kernel window_attention, 0.2 s ago",
  // for people.
  std::string ToString(int64_t now_monotonic_nanos) const;
};

// The worker's side. Updates come from the training thread alone. A default-constructed writer
// keeps its page in memory only.
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
  void EnterCollective(std::string_view name);  // no kernel runs in it
  void LeaveCollective();
  void SetTelemetryError(std::string_view error);  // cut to 511 bytes
  // A sign of life without news, e.g. from a long evaluation.
  void Touch();

  struct Layout;

 private:
  explicit StatusPage(Layout* page) : page_(page) {}
  template <typename Store>
  void Update(Store store);  // runs `store` under the sequence lock

  Layout* page_;  // a mapping of its own; nullptr after a move
};

// A consistent copy of a page; works on the page of a dead or stopped process. Unavailable when the
// process died in the middle of an update (the copy is then best-effort and not returned), NotFound
// without the file.
absl::StatusOr<WorkerStatus> ReadStatusPage(const std::filesystem::path& path);

}  // namespace nsa
