// What should run on a machine: the answer to a heartbeat. Pure.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "nsa/v1/fleet.pb.h"
#include "server/store/job_store.h"

namespace nsa::server {

// A worker as its machine reported it: Fleet::Worker().
using WorkerOf = std::function<std::optional<v1::WorkerObservation>(
    const std::string& node, const std::string& job_id, int64_t generation, int32_t rank)>;

// The ranks of STARTING, RUNNING and STOPPING jobs should run, with the stop that is in force. When
// a rank was lost, the others get a stop NOW but stay in the answer, so that their ends are
// reported. The ranks of a job that moves to other machines get a GRACEFUL stop. Once the cause has
// been decided they are left out, and their agents clean up.
//
// If the job has published a checkpoint, its assignments name the step of the last one. A worker
// that then finds no checkpoint in out_dir, not even an older one, does not begin at step 0
// (worker/train/step/resume.h).
//
// A rank whose next rank runs on another machine gets its address, once that is known. Ranks
// whose allocation ends soon (decide/allocation/) are asked to stop, in time for a checkpoint.
std::vector<v1::WorkerAssignment> DesiredOn(const std::string& node,
                                            const std::vector<JobPtr>& active,
                                            const WorkerOf& worker_of, absl::Time now);

// Names the published checkpoint in restart.resume, as agents without takes_resume_from_step want.
void MakeForOlderAgent(v1::WorkerAssignment* assignment);

}  // namespace nsa::server
