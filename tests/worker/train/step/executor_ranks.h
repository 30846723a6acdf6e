// Ranks of the CPU without a trainer: one executor each, up to a step.
#pragma once

#include <functional>

#include "tests/testing/status_matchers.h"
#include "tests/worker/train/comm/on_ranks.h"
#include "tests/worker/train/step/trainer_jobs.h"
#include "worker/train/step/executor.h"

namespace nsa::train {

// Opens the executors of `world` ranks, each in a thread of its own and with the initial weights of
// the spec, and lets each thread use its own.
inline void OnExecutors(const v1::JobSpec& spec, int world,
                        const std::function<void(int rank, StepExecutor* executor)>& use) {
  const RealClock clock;
  OnRanks(world, [&](Comm* comm) {
    const ParameterLayout layout(spec);
    v1::WorkerLaunch launch;
    *launch.mutable_spec() = spec;
    launch.set_rank(comm->rank());
    launch.set_world_size(world);
    StatusPage page;
    const auto executor = MakeCpuExecutor(
        {.launch = &launch, .layout = &layout, .comm = comm, .page = &page, .clock = &clock});
    ASSERT_OK(executor->Open());
    Initialize(spec.train().seed(), &executor->state().parameters);
    use(comm->rank(), executor.get());
  });
}

}  // namespace nsa::train
