// AdamW (Loshchilov & Hutter 2019) over flat buffers, all tensors of a model that it updates in one
// call:
//
//   g' = gradient_scale · g
//   m ← β1 m + (1 − β1) g'        v ← β2 v + (1 − β2) g'²
//   p ← p − lr · ( (m / (1 − β1^k)) / (√(v / (1 − β2^k)) + ε)  +  decay · p )
//
// The weight decay is decoupled and applies only to segments with `decay` set.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/tensor.h"

namespace nsa {

// A run of elements with or without weight decay. One without `update` is left alone: it belongs to
// another optimizer (muon.h).
struct AdamWSegment {
  int64_t size = 0;
  bool decay = false;
  bool update = true;
};

// The values that change from update to update: five floats, so that device memory can hold them.
struct AdamWStep {
  float lr = 0;
  float gradient_scale = 1;
  float inverse_bias1 = 1;  // 1 / (1 − β1^k)
  float inverse_bias2 = 1;  // 1 / (1 − β2^k)
  float skip = 0;           // not 0: the update changes nothing
};

struct AdamWArgs {
  Tensor parameters;                       // fp32 [N], updated
  ConstTensor gradients;                   // fp32 [N]
  Tensor m;                                // fp32 [N], updated
  Tensor v;                                // fp32 [N], updated
  std::span<const AdamWSegment> segments;  // cover [0, N) in order; host memory

  int64_t k = 1;  // 1-based number of this update
  float lr = 0;
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float eps = 1e-8f;
  float weight_decay = 0;
  float gradient_scale = 1;  // the clipping factor

  // CUDA only. `half`: bf16 [N], overwritten with the rounded parameters. `device_step`: fp32 [5],
  // an AdamWStep in device memory that is used instead of k, lr and gradient_scale, so that a
  // captured launch can serve every step.
  Tensor half;
  ConstTensor device_step;
};

// The AdamWStep for the k, lr, betas and gradient_scale of `args`, each value rounded once.
AdamWStep StepOf(const AdamWArgs& args);

// InvalidArgument when sizes or types differ, the segments do not add up to N, or k < 1.
absl::Status AdamW(const Exec& exec, const AdamWArgs& args);

}  // namespace nsa

// The same on a GPU (adamw.cu); the function above has checked the arguments.
namespace nsa::cuda {

absl::Status AdamW(const Exec& exec, const AdamWArgs& args);

}  // namespace nsa::cuda
