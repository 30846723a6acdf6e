// What should run on a machine: the answer to a heartbeat. Pure.
#pragma once

#include <string>
#include <vector>

#include "nsa/v1/fleet.pb.h"
#include "server/store/job_store.h"

namespace nsa::server {

// Ranks of STARTING, RUNNING and STOPPING jobs run, with the stop that is in force. When one was
// lost, the others are killed but stay in the answer, so that their ends are reported. Once the
// cause has been decided they are left out, and their agents clean up.
//
// A job that has published a checkpoint is assigned with restart.resume naming the last one, in
// out_dir: a worker that finds none there, not even an older one, does not begin at step 0
// (worker/train/step/resume.h).
std::vector<v1::WorkerAssignment> DesiredOn(const std::string& node,
                                            const std::vector<JobPtr>& active);

}  // namespace nsa::server
