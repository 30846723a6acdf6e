#include "server/act/desired.h"

#include <algorithm>

#include "common/checkpoint/checkpoint_dir.h"
#include "server/decide/lifecycle.h"

namespace nsa::server {
namespace {

bool Wanted(const v1::StoredJob& job) {
  return HasGang(job.job().state()) && !job.restart_decided();
}

v1::WorkerAssignment Assignment(const v1::StoredJob& stored, const v1::RankPlacement& place,
                                int ranks_on_node) {
  const v1::Job& job = stored.job();
  v1::WorkerAssignment assignment;
  assignment.set_job_id(job.id());
  assignment.set_generation(job.generation());
  assignment.set_rank(place.rank());
  assignment.set_world_size(stored.placements_size());
  *assignment.mutable_spec() = job.spec();
  if (const int64_t step = job.progress().checkpoint_step(); step > 0) {
    const auto checkpoint = CheckpointsDir(job.spec().train().out_dir()) / CheckpointName(step);
    assignment.mutable_spec()->mutable_restart()->set_resume(checkpoint.string());
    assignment.set_submitted_resume(job.spec().restart().resume());
  }
  assignment.set_cuda_device(place.cuda_device());
  assignment.set_ranks_on_node(ranks_on_node);
  if (stored.gang_ending()) {
    assignment.mutable_stop()->set_mode(v1::STOP_MODE_NOW);
  } else if (job.stop().mode() != v1::STOP_MODE_UNSPECIFIED) {
    *assignment.mutable_stop() = job.stop();
  }
  return assignment;
}

}  // namespace

std::vector<v1::WorkerAssignment> DesiredOn(const std::string& node,
                                            const std::vector<JobPtr>& active) {
  std::vector<v1::WorkerAssignment> desired;
  for (const JobPtr& job : active) {
    if (!Wanted(*job)) continue;
    const auto here = [&](const v1::RankPlacement& place) { return place.node() == node; };
    const auto ranks = static_cast<int>(std::ranges::count_if(job->placements(), here));
    for (const v1::RankPlacement& place : job->placements()) {
      if (here(place)) desired.push_back(Assignment(*job, place, ranks));
    }
  }
  return desired;
}

}  // namespace nsa::server
