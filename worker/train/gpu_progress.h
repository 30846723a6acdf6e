// How far the GPU has come, for the status page. The host enqueues a step and then has nothing to
// do until it ends, so the device says itself where it is: between the kernels of a step stand
// marks, which write a number to memory that the host sees. What the number stands for (phase,
// micro-batch, layer, kernel) is noted when the mark is enqueued, or captured into a graph. Marks
// of phases also note the time.
//
// A kernel is marked when it begins a layer or a phase, or when it is one of those whose run time
// depends on the data or is long: a mark costs a launch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/status_page.h"
#include "kernels/cuda/device.h"
#include "kernels/exec.h"

namespace nsa {

class GpuProgress {
 public:
  // `page` outlives this. With `every_kernel` each kernel is marked and timed, which a step takes a
  // few percent longer for.
  static absl::StatusOr<std::unique_ptr<GpuProgress>> Create(StatusPage* page, bool every_kernel,
                                                             int32_t micro_batches);

  // Places for times, of a graph and of what runs beside it: a step has a mark for each forward and
  // each backward and three behind them. With `every_kernel` the marks of long steps have none.
  static int32_t Stamps(int32_t micro_batches, bool every_kernel);

  // `exec`, with marks. Valid as long as this.
  Exec Watch(const Exec& exec);

  // Before something is enqueued anew: the marks that nothing holds are forgotten.
  void Begin();
  // What has been enqueued since Begin() is in a graph: its marks stay.
  void Keep();
  // Nothing holds marks any more.
  void Drop();

  void EnterPhase(Phase phase, int32_t micro_batch);
  void EnterLayer(int32_t layer);

  // Seconds of each phase in the step that has just ended, from the marks of the graph or of what
  // was enqueued: from a phase's mark to the next one's.
  double Seconds(Phase phase, bool in_graph) const;

  // Seconds of each kernel family in that step, by phase and name ("backward matmul"), with
  // `every_kernel`: from a kernel's mark to the next one's.
  struct KernelTime {
    int64_t calls = 0;
    double seconds = 0;
  };
  std::map<std::string, KernelTime> KernelTimes(bool in_graph) const;

  // Whether the stream has done everything; shows on the page how far it is. An error of a mark, or
  // of any kernel.
  absl::StatusOr<bool> Look();

  // Looks until it has.
  absl::Status Wait();

  // Memory that a spinning kernel watches; never set.
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
