#include "server/act/desired.h"

#include <algorithm>

#include "common/checkpoint/checkpoint_dir.h"
#include "server/decide/allocation/allocation.h"
#include "server/decide/lifecycle.h"
#include "server/decide/queue/start.h"
#include "server/decide/rule/cordon.h"

namespace nsa::server {
namespace {

bool Wanted(const v1::StoredJob& job) {
  return HasGang(job.job().state()) && !job.restart_decided();
}

bool OnSeveralMachines(const v1::StoredJob& stored) {
  return std::ranges::any_of(stored.placements(), [&](const v1::RankPlacement& place) {
    return place.node() != stored.placements(0).node();
  });
}

// Where the rank after `place` listens; empty if it runs on the same machine, or none is known.
std::string NextRankAddress(const v1::StoredJob& stored, const v1::RankPlacement& place,
                            const WorkerOf& worker_of) {
  const int next = (place.rank() + 1) % stored.placements_size();
  const auto to = std::ranges::find(stored.placements(), next, &v1::RankPlacement::rank);
  if (to == stored.placements().end() || to->node() == place.node()) return "";
  const auto worker = worker_of(to->node(), stored.job().id(), stored.job().generation(), next);
  return worker.has_value() ? worker->rank_address() : "";
}

v1::WorkerAssignment Assignment(const v1::StoredJob& stored, const v1::RankPlacement& place,
                                int ranks_on_node, absl::Time now) {
  const v1::Job& job = stored.job();
  v1::WorkerAssignment assignment;
  assignment.set_job_id(job.id());
  assignment.set_generation(job.generation());
  assignment.set_rank(place.rank());
  assignment.set_world_size(stored.placements_size());
  *assignment.mutable_spec() = SpecOfStart(stored);
  assignment.set_resume_from_step(job.progress().checkpoint_step());
  assignment.set_cuda_device(place.cuda_device());
  assignment.set_unix_user(job.unix_user());
  assignment.set_ranks_on_node(ranks_on_node);
  if (stored.gang_ending()) {
    assignment.mutable_stop()->set_mode(v1::STOP_MODE_NOW);
  } else if (IsMoving(stored)) {
    assignment.mutable_stop()->set_mode(v1::STOP_MODE_GRACEFUL);
  } else if (EndsSoon(job, now)) {
    // So that the last checkpoint is complete before the machines are taken. The job then continues
    // on others, as after a loss of machines.
    assignment.mutable_stop()->set_mode(v1::STOP_MODE_GRACEFUL);
  } else if (job.stop().mode() != v1::STOP_MODE_UNSPECIFIED) {
    *assignment.mutable_stop() = job.stop();
  }
  return assignment;
}

}  // namespace

std::vector<v1::WorkerAssignment> DesiredOn(const std::string& node,
                                            const std::vector<JobPtr>& active,
                                            const WorkerOf& worker_of, absl::Time now) {
  std::vector<v1::WorkerAssignment> desired;
  for (const JobPtr& job : active) {
    if (!Wanted(*job)) continue;
    const auto here = [&](const v1::RankPlacement& place) { return place.node() == node; };
    const auto ranks = static_cast<int>(std::ranges::count_if(job->placements(), here));
    const bool several = OnSeveralMachines(*job);
    for (const v1::RankPlacement& place : job->placements()) {
      if (!here(place)) continue;
      v1::WorkerAssignment& assignment = desired.emplace_back(Assignment(*job, place, ranks, now));
      assignment.set_several_machines(several);
      if (several) assignment.set_next_rank_address(NextRankAddress(*job, place, worker_of));
    }
  }
  return desired;
}

void MakeForOlderAgent(v1::WorkerAssignment* assignment) {
  if (assignment->resume_from_step() == 0) return;
  v1::JobSpec* spec = assignment->mutable_spec();
  assignment->set_submitted_resume(spec->restart().resume());
  const auto folder = CheckpointsDir(spec->train().out_dir());
  spec->mutable_restart()->set_resume(folder / CheckpointName(assignment->resume_from_step()));
}

}  // namespace nsa::server
