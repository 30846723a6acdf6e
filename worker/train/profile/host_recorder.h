// Records what the status page shows (common/run/status_page.h) as ranges of time: each phase, the
// layers in it, the kernels in them, and collectives. The marks say when something begins; a range
// ends where the next one of its kind begins, or where the range around it ends.
//
// On a GPU the marks are the device's progress as the host sees it while it waits (gpu_progress.h);
// the times of kernels there are CUPTI's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/run/status_page.h"
#include "worker/train/profile/trace.h"

namespace nsa::train {

// A use of memory that is sampled while a trace is recorded. `bytes` is called by the training
// thread, at most once in `every_nanos`, and takes microseconds.
struct MemoryGauge {
  std::string name;  // "host memory"
  std::function<int64_t()> bytes;
  int64_t every_nanos = 1'000'000;
};

// For the training thread only, as the page's updates are.
class HostRecorder final : public PageObserver {
 public:
  // Borrows `trace`. `now` returns nanoseconds of CLOCK_MONOTONIC.
  HostRecorder(Trace* trace, std::vector<MemoryGauge> gauges, std::function<int64_t()> now);

  // Ends what is open and begins the range of a step. Its first phase begins with its first mark.
  void BeginStep(int64_t step);
  // Ends all ranges. Returns when: the time of its call.
  int64_t EndStep();

  void OnPhase(Phase phase) override;
  void OnMicroStep(int32_t micro_step) override { micro_step_ = micro_step; }
  void OnLayer(int32_t layer) override;
  void OnKernel(std::string_view kernel) override;
  void OnCollective(std::string_view name) override;

 private:
  struct Range {
    bool open = false;
    TraceEvent event;
  };
  void Open(Range* range, TraceEvent event, std::string_view name, int64_t now);
  void Close(Range* range, int64_t now);
  void Sample(int64_t now);

  Trace* const trace_;
  const std::vector<MemoryGauge> gauges_;
  const std::function<int64_t()> now_;
  std::vector<int64_t> next_sample_;
  Phase current_ = Phase::kStarting;
  int32_t layer_ = -1;
  int32_t micro_step_ = 0;
  Range step_, phase_, layer_range_, kernel_, collective_;
};

}  // namespace nsa::train
