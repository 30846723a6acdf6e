#include "worker/train/model/state.h"

#include <utility>

#include "common/base/status.h"
#include "common/estimate/memory/memory.h"
#include "common/estimate/passes.h"
#include "common/estimate/shares.h"
#include "kernels/cuda/device.h"

namespace nsa::train {
namespace {

// What backward recomputes if it is to be decided by the device's free memory.
absl::StatusOr<Recompute> RecomputeFor(const v1::JobSpec& spec, Backend backend) {
  if (backend == Backend::kCpu) return RecomputeOf(spec);
  NSA_ASSIGN_OR_RETURN(const int64_t memory, cuda::FreeBytes());
  return RecomputeOf(spec, memory);
}

ModelOptions OptionsFor(const v1::JobSpec& spec, Backend backend, int32_t world_size,
                        ContextGroup* group, Recompute recompute) {
  const Passes passes = PassesOf(spec, world_size);
  return {.batch = passes.sequences,
          .seq_len = spec.train().seq_len(),
          .training = true,
          .statistics = true,
          .backend = backend,
          .micro_batches = backend == Backend::kCuda ? passes.count : 1,
          .group = group,
          .keep_token_losses = !spec.data().mix().empty(),
          .recompute = recompute};
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelState>> ModelState::Create(const v1::JobSpec& spec,
                                                               const ParameterLayout* layout,
                                                               Backend backend, int32_t world_size,
                                                               int32_t rank, ContextGroup* group,
                                                               std::optional<Recompute> recompute) {
  const v1::TrainSpec& train = spec.train();
  const bool cuda = backend == Backend::kCuda;
  if (!recompute.has_value()) {
    NSA_ASSIGN_OR_RETURN(recompute, RecomputeFor(spec, backend));
  }
  const Shares shares(*layout, train, world_size);
  const bool sharded = ShardsOptimizer(spec, world_size);
  const bool windows = ShardsGradients(spec, world_size);
  const bool parts = ShardsParameters(spec, world_size);
  const Slice all = {0, layout->size()}, own = sharded ? shares.of(rank) : all;
  NSA_ASSIGN_OR_RETURN(Arena parameters, Arena::Create(layout,
                                                       {.backend = backend,
                                                        .half = cuda,
                                                        .slice = cuda || parts ? own : all,
                                                        .half_slice = parts},
                                                       "weights"));
  NSA_ASSIGN_OR_RETURN(Arena gradients,
                       Arena::Create(layout,
                                     {.backend = backend,
                                      .extras = kGradientExtras,
                                      .slice = windows ? std::optional(own) : std::nullopt},
                                     "gradients"));
  NSA_ASSIGN_OR_RETURN(Optimizer optimizer, Optimizer::Create(train, layout, backend, own));
  std::unique_ptr<ModelState> state(new ModelState{.backend = backend,
                                                   .rank = rank,
                                                   .shares = shares,
                                                   .sharded = sharded,
                                                   .recompute = *recompute,
                                                   .parameters = std::move(parameters),
                                                   .gradients = std::move(gradients),
                                                   .optimizer = std::move(optimizer),
                                                   .weights = {},
                                                   .model = nullptr,
                                                   .window = {}});
  if (parts) {
    NSA_ASSIGN_OR_RETURN(state->weights,
                         WeightWindow::Create(layout, spec.model().n_layers(), backend));
  }
  NSA_ASSIGN_OR_RETURN(state->model,
                       Model::Create(spec, OptionsFor(spec, backend, world_size, group, *recompute),
                                     parts ? state->weights->arena() : &state->parameters));
  if (windows) {
    NSA_ASSIGN_OR_RETURN(state->window,
                         GradientWindow::Create(layout, PartsOf(*state->model, *layout), backend));
  }
  return state;
}

int64_t ModelState::bytes() const {
  return parameters.bytes() + gradients.bytes() + optimizer.first_moment().bytes() +
         optimizer.second_moment().bytes() + model->activation_bytes() +
         (window.has_value() ? window->bytes() : 0) + (weights.has_value() ? weights->bytes() : 0);
}

HostState::HostState(ModelState* state, const ParameterLayout* layout) : state_(state) {
  if (state->backend == Backend::kCpu) {
    parts_ = {&state->parameters, &state->optimizer.first_moment(),
              &state->optimizer.second_moment()};
    return;
  }
  const Slice moments = state->optimizer.first_moment().slice();
  copy_.emplace_back(layout, state->parameters.half_slice());
  copy_.emplace_back(layout, moments);
  copy_.emplace_back(layout, moments);
  for (size_t i = 0; i < parts_.size(); ++i) parts_[i] = &copy_[i];
}

absl::Status HostState::Commit(const Exec& exec) {
  if (copy_.empty()) return absl::OkStatus();
  NSA_RETURN_IF_ERROR(CopyArena(exec, copy_[0], &state_->parameters));
  NSA_RETURN_IF_ERROR(CopyArena(exec, copy_[1], &state_->optimizer.first_moment()));
  return CopyArena(exec, copy_[2], &state_->optimizer.second_moment());
}

}  // namespace nsa::train
