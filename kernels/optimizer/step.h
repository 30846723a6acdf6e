// Small kernels around a training step: what decides on the device, so that the host need not look
// in between, and what tells the host how far the device has come. CUDA only.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/tensor.h"

namespace nsa::cuda {

// What the host knows of a step before it begins; in device memory.
struct StepInput {
  float lr = 0;
  float inverse_bias1 = 1;  // AdamWStep's
  float inverse_bias2 = 1;
  float clip = 0;  // largest gradient norm; 0: any
};

// What it may read once the step is done.
struct StepOutput {
  AdamWStep update;  // what AdamW took
  float loss = 0;
  float norm = 0;  // of all gradients, before clipping
};

// mean ← Σ losses · scale, in order; losses are `stride` floats apart.
struct MeanLossArgs {
  const float* losses = nullptr;
  int32_t count = 0;
  int64_t stride = 1;
  float scale = 1;
  float* mean = nullptr;
};
absl::Status MeanLoss(const Exec& exec, const MeanLossArgs& args);

// From loss and norm: the clipping factor, and whether the update is skipped, which it is when one
// of the two is not finite. Fills `output`, all but `norm`, which GlobalNorm has put there.
struct DecideUpdateArgs {
  const StepInput* input = nullptr;
  const float* loss = nullptr;
  StepOutput* output = nullptr;
};
absl::Status DecideUpdate(const Exec& exec, const DecideUpdateArgs& args);

// *mark ← value, visible to the host at once, when the stream gets there; *nanos ← the GPU's clock.
// Both are pinned host memory; `nanos` may be null.
absl::Status Mark(const Exec& exec, int32_t* mark, int32_t value, int64_t* nanos);

// Spins until *stop (pinned host memory) is not 0: a hanging kernel, for tests of what happens
// then.
absl::Status Spin(const Exec& exec, const int32_t* stop);

}  // namespace nsa::cuda
