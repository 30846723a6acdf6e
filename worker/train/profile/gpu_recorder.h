// Records what a GPU does, with NVIDIA's CUPTI (activity API), which is loaded at run time when the
// first trace is asked for: kernels, also each one in a CUDA graph, copies and memory sets. Kernels
// of NCCL are recognised by their names.
//
// Needs no CUDA header here. In a program that was built without CUPTI's header, and where the
// library is missing or refuses, Start() says so, and a trace has no kernels.
// Source: CUPTI's documentation, "CUPTI Activity API"; records are read as CUpti_ActivityKernel9,
// CUpti_ActivityMemcpy5 and CUpti_ActivityMemset4, which later versions extend at their ends.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/train/profile/trace.h"

namespace nsa::train {

class GpuRecorder {
 public:
  virtual ~GpuRecorder() = default;

  // Records from now on, with times of CLOCK_MONOTONIC. Work that is enqueued later is recorded;
  // CUDA graphs must be instantiated again, because CUPTI sees the single kernels of those only
  // that it saw being made.
  virtual absl::Status Start() = 0;

  // Ends the recording. The GPU must be idle. Adds what began from `begin` to `end` (nanoseconds of
  // CLOCK_MONOTONIC) to the trace, as far as it has room. Internal when CUPTI reports an error.
  virtual absl::Status Stop(int64_t begin, int64_t end, Trace* trace) = 0;

  // Ends the recording without waiting for anything; what was recorded is lost. For a GPU on which
  // something has failed.
  virtual void Abandon() = 0;
};

// The recorder of this process. CUPTI allows one; it stays loaded until the process ends. `file`:
// only this file is tried; empty: libcupti.so.13 or .12 in the usual places. FailedPrecondition or
// NotFound, with the reason and what to do, when there is none.
absl::StatusOr<GpuRecorder*> OpenGpuRecorder(const std::string& file);

// Whether a kernel of this name is one of NCCL's collectives.
bool IsCollectiveKernel(std::string_view name);

}  // namespace nsa::train
