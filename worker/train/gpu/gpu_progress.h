// How far the GPU is, for the status page. The host enqueues a whole step at once, so the device
// itself reports its progress: marks between the kernels of a step write a number to memory that
// the host can read. What a number stands for (phase, micro-batch, layer, kernel) is recorded when
// the mark is enqueued or captured into a graph. Marks that begin a phase also record the time.
//
// A mark costs a kernel launch. So only those kernels are marked that begin a layer or a phase, and
// those that run long or as long as the data makes them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/run/status_page.h"
#include "kernels/cuda/device.h"
#include "kernels/exec.h"

namespace nsa {

class GpuProgress {
 public:
  // `page` outlives this. With `every_kernel` each kernel is marked and timed, which makes a step a
  // few percent longer.
  static absl::StatusOr<std::unique_ptr<GpuProgress>> Create(StatusPage* page, bool every_kernel,
                                                             int32_t micro_batches);

  // How many times can be recorded, for a graph and for what runs outside it: a step has a mark for
  // each forward and each backward, and three after them. With `every_kernel` there are 16,384 at
  // least; later marks of a longer step record no time.
  static int32_t Stamps(int32_t micro_batches, bool every_kernel);

  // `exec` with marks. Valid as long as this object.
  Exec Watch(const Exec& exec);

  // To be called before kernels are enqueued: forgets the marks that no graph holds.
  void Begin();
  // What was enqueued since Begin() has been captured into a graph: its marks are kept.
  void Keep();
  // The graph is gone, and its marks with it.
  void Drop();

  void EnterPhase(Phase phase, int32_t micro_batch);
  void EnterLayer(int32_t layer);

  // Seconds that a phase took in the step that has just ended: from its mark to the next phase's.
  // `in_graph`: the step ran as a graph.
  double Seconds(Phase phase, bool in_graph) const;

  // With `every_kernel`: seconds of each kernel family in that step, by phase and name ("backward
  // matmul"), from a kernel's mark to the next kernel's.
  struct KernelTime {
    int64_t calls = 0;
    double seconds = 0;
  };
  std::map<std::string, KernelTime> KernelTimes(bool in_graph) const;

  // Whether the stream has finished everything; updates the status page. Returns the error of a
  // mark or of any kernel.
  absl::StatusOr<bool> Poll();

  // Polls until the stream has finished.
  absl::Status Wait();

  // Memory that a spinning test kernel waits for; never set.
  const int32_t* never() const;

 private:
  struct Mark {
    Phase phase = Phase::kStarting;
    int32_t micro_batch = 0;
    int32_t layer = -1;
    const char* kernel = "";
    int32_t stamp = -1;  // where the time goes
    bool begins_phase = false;
  };

  GpuProgress(StatusPage* page, bool every_kernel, int32_t max_stamps)
      : page_(page), every_kernel_(every_kernel), max_stamps_(max_stamps) {}
  void EnterKernel(const char* name);
  void Add(const char* kernel, bool begins_phase);
  void Show();
  int32_t* word() const;
  int64_t* stamps() const;

  StatusPage* const page_;
  const bool every_kernel_;
  const int32_t max_stamps_;
  Exec exec_;
  cuda::PinnedMemory memory_;
  std::vector<Mark> marks_;
  size_t kept_ = 0;
  int32_t stamps_used_ = 0;
  int32_t stamps_kept_ = 0;
  Mark current_;
  int32_t shown_ = -1;
  absl::Status error_;
};

}  // namespace nsa
