// Small kernels around a training step. They make decisions on the device, so that the host need
// not wait for results within a step, and report the device's progress to the host. CUDA only.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/mark.h"
#include "kernels/exec.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/tensor.h"

namespace nsa::cuda {

// The inputs of a step that the host knows before it begins; in device memory.
struct StepInput {
  float lr = 0;
  float inverse_bias1 = 1;  // as in AdamWStep
  float inverse_bias2 = 1;
  float clip = 0;    // largest gradient norm; 0: no clipping
  float weight = 1;  // the gradients are this times those that were summed
};

// What the host may read once the step is done.
struct StepOutput {
  AdamWStep update;  // the values that AdamW used
  float loss = 0;
  float norm = 0;  // of all gradients, before clipping
};

// mean ← Σ losses · scale · weights, summed in order; losses are `stride` floats apart.
struct MeanLossArgs {
  const float* losses = nullptr;
  int32_t count = 0;
  int64_t stride = 1;
  float scale = 1;
  const float* weights = nullptr;  // [count]; null: all 1
  float* mean = nullptr;
};
absl::Status MeanLoss(const Exec& exec, const MeanLossArgs& args);

// Computes the clipping factor from loss and norm, and skips the update when one of the two is not
// finite. Fills all of `output`; its `norm` is that of the summed gradients before, which
// GlobalNorm has written, and that of the weighted ones afterwards.
struct DecideUpdateArgs {
  const StepInput* input = nullptr;
  const float* loss = nullptr;
  StepOutput* output = nullptr;
};
absl::Status DecideUpdate(const Exec& exec, const DecideUpdateArgs& args);

// Writes `mark` by a kernel of its own, when the stream gets there.
absl::Status Mark(const Exec& exec, PendingMark mark);

// Spins until *stop (pinned host memory) is not 0: a hanging kernel for tests.
absl::Status Spin(const Exec& exec, const int32_t* stop);

}  // namespace nsa::cuda
