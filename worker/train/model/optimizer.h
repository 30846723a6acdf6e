// Gradient clipping by the global norm, and the optimizer on the flat arena with its two moments,
// or on one rank's share of it (shares.h): AdamW for all parameters, or with train.optimizer: muon
// Muon for the hidden matrices (ParameterInfo::hidden) and AdamW for the others. Muon keeps the
// momentum in the first moment and the variances of a matrix's rows in the first elements of its
// second moment.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/exec.h"
#include "kernels/matmul_args.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/muon.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/model/parameters.h"
#include "worker/train/model/slice.h"

namespace nsa::train {

class Optimizer {
 public:
  // The moments are zero, in host memory. `layout` outlives the optimizer.
  Optimizer(const v1::TrainSpec& train, const ParameterLayout* layout);

  // The same on the device of `backend`, for the elements of `share`: it has moments of these and
  // updates these only. With Muon no matrix may lie across an end of the share.
  static absl::StatusOr<Optimizer> Create(const v1::TrainSpec& train, const ParameterLayout* layout,
                                          Backend backend, const Slice& share);

  // L2 norm of all gradients, which clipping uses and telemetry shows.
  absl::StatusOr<double> GlobalNorm(const Exec& exec, const Arena& gradients) const;

  // One update of the share. `norm` is that of all gradients, which are clipped to
  // train.grad_clip. `gradients` and `parameters` have at least the elements of the share. `step`,
  // the 1-based optimizer step, determines the bias correction; skipped steps count.
  absl::Status Update(const Exec& exec, int64_t step, double learning_rate, double norm,
                      const Arena& gradients, Arena* parameters);

  // The same on a GPU, where the host does not know the norm: `device_step` is an AdamWStep in
  // device memory.
  absl::Status Enqueue(const Exec& exec, const ConstTensor& device_step, const Arena& gradients,
                       Arena* parameters);

  // An AdamWStep with the learning rate and the bias corrections of optimizer step `step`.
  AdamWStep StepAt(int64_t step, double learning_rate) const;

  // On a GPU: the size of Exec::workspace that Enqueue() needs, and the matrix products of an
  // optimizer for `share`.
  int64_t workspace_bytes() const { return MuonWorkspaceBytes(matrices_); }
  static std::vector<MatmulArgs> Products(const v1::TrainSpec& train, const ParameterLayout& layout,
                                          const Slice& share);

  double clip() const { return train_.grad_clip(); }

  // The state that a checkpoint keeps: of the share.
  Arena& first_moment() { return m_; }
  Arena& second_moment() { return v_; }
  const Arena& first_moment() const { return m_; }
  const Arena& second_moment() const { return v_; }

 private:
  Optimizer(const v1::TrainSpec& train, const ParameterLayout* layout, const Slice& share, Arena m,
            Arena v);
  AdamWArgs Arguments(const Arena& gradients, Arena* parameters);
  MuonArgs MuonArguments(const Arena& gradients, Arena* parameters);

  v1::TrainSpec train_;
  Slice share_;
  std::vector<AdamWSegment> segments_;  // of the share
  std::vector<MuonMatrix> matrices_;    // of the share, from its begin on; empty without Muon
  Arena m_;
  Arena v_;
};

}  // namespace nsa::train
