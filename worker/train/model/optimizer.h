// Clipping by the global norm, and AdamW over the flat arena with its two moments.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/exec.h"
#include "kernels/optimizer/adamw.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/model/parameters.h"

namespace nsa {

class Optimizer {
 public:
  // Moments start at zero, in host memory. `layout` outlives the optimizer.
  Optimizer(const v1::TrainSpec& train, const ParameterLayout* layout);

  // The same on the device of `backend`.
  static absl::StatusOr<Optimizer> Create(const v1::TrainSpec& train, const ParameterLayout* layout,
                                          Backend backend);

  // L2 norm of all gradients, as clipping uses and telemetry shows it.
  absl::StatusOr<double> GlobalNorm(const Exec& exec, const Arena& gradients) const;

  // One AdamW update with the gradients clipped to grad_clip, given their norm. `step` is the
  // 1-based optimizer step, which sets the bias correction; skipped steps count.
  absl::Status Update(const Exec& exec, int64_t step, double learning_rate, double grad_norm,
                      const Arena& gradients, Arena* parameters);

  // The same on a GPU, without the host knowing the norm: `device_step` is an AdamWStep in device
  // memory.
  absl::Status Enqueue(const Exec& exec, const ConstTensor& device_step, const Arena& gradients,
                       Arena* parameters);

  // AdamWStep's bias corrections at optimizer step `step`, and the learning rate.
  AdamWStep StepAt(int64_t step, double learning_rate) const;

  double clip() const { return train_.grad_clip(); }

  // The state that a checkpoint keeps.
  Arena& first_moment() { return m_; }
  Arena& second_moment() { return v_; }
  const Arena& first_moment() const { return m_; }
  const Arena& second_moment() const { return v_; }

 private:
  Optimizer(const v1::TrainSpec& train, const ParameterLayout* layout, Arena m, Arena v);
  AdamWArgs Arguments(const Arena& gradients, Arena* parameters);

  v1::TrainSpec train_;
  std::vector<AdamWSegment> segments_;
  Arena m_;
  Arena v_;
};

}  // namespace nsa
