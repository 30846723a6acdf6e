// What one rank trains: parameters, their gradients and moments, and the model that computes with
// them, all in the memory of one device. With runtime.shard: optimizer (shares.h) a rank has the
// moments of its share only; on a GPU also the fp32 weights, while it has all weights in bf16. On
// the CPU the model computes with the fp32 weights, so every rank has all of them. With `gradients`
// a rank also keeps the gradients of its share only (gradient_window.h), and with `parameters` the
// weights that the model computes with (weight_window.h).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/estimate/memory/memory.h"
#include "kernels/exec.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/model/gradient_window.h"
#include "worker/train/model/model.h"
#include "worker/train/model/optimizer.h"
#include "worker/train/model/parameters.h"
#include "worker/train/model/shares.h"
#include "worker/train/model/weight_window.h"

namespace nsa::train {

struct ModelState {
  // Number of floats behind the gradients. They hold the loss, which is summed over the ranks
  // together with the gradients.
  static constexpr int64_t kGradientExtras = 16;

  // Allocates everything for rank `rank` of `world_size`; all zeros. `layout` outlives the state.
  // On a GPU the parameters have a bf16 copy, and the model holds all passes of a step at a time,
  // as its micro-batches. `group`: the ranks that share sequences with this one, as
  // ModelOptions::group; null without context parallelism. `recompute`: default what
  // RecomputeOf(spec) says for the GPU's free memory. ResourceExhausted when the device has too
  // little memory.
  static absl::StatusOr<std::unique_ptr<ModelState>> Create(
      const v1::JobSpec& spec, const ParameterLayout* layout, Backend backend, int32_t world_size,
      int32_t rank, ContextGroup* group = nullptr, std::optional<Recompute> recompute = {});

  // The elements that this rank updates.
  Slice share() const { return sharded ? shares.of(rank) : Slice{0, gradients.layout().size()}; }

  // Size of all of it in device memory.
  int64_t bytes() const;

  Backend backend = Backend::kCpu;
  int32_t rank = 0;
  Shares shares;         // of all ranks
  bool sharded = false;  // this rank has the optimizer's state of its share only
  Recompute recompute = Recompute::kNothing;
  Arena parameters;  // with `weights` those of share(), on a GPU also in bf16
  Arena gradients;   // with kGradientExtras; of share() where there is a window
  Optimizer optimizer;
  // What the model reads in place of `parameters`, where a rank has those of its share only. The
  // executor gathers each part before it is read (Model::set_before_part()).
  std::optional<WeightWindow> weights;
  std::unique_ptr<Model> model;  // borrows `weights`, or else `parameters`
  // Where backward makes gradients whose sums the owners of their shares keep; none if each rank
  // has all gradients.
  std::optional<GradientWindow> window;
};

// Where parameters and moments get their initial values, in host memory: the parameters and moments
// that the rank has, in fp32 or bf16. On the CPU this is the state itself; for a GPU it is a copy,
// which Commit() transfers.
class HostState {
 public:
  HostState(ModelState* state, const ParameterLayout* layout);

  Arena* parameters() { return parts_[0]; }
  Arena* first_moment() { return parts_[1]; }
  Arena* second_moment() { return parts_[2]; }

  // Copies the values to the state's device and waits for it.
  absl::Status Commit(const Exec& exec);

 private:
  ModelState* const state_;
  std::vector<Arena> copy_;
  std::array<Arena*, 3> parts_ = {};
};

}  // namespace nsa::train
