// What should run on a machine: the answer to a heartbeat. Pure.
#pragma once

#include <string>
#include <vector>

#include "nsa/v1/fleet.pb.h"
#include "server/store/job_store.h"

namespace nsa::server {

// The ranks of STARTING, RUNNING and STOPPING jobs should run, with the stop that is in force. When
// a rank was lost, the others get a stop NOW but stay in the answer, so that their ends are
// reported. Once the cause has been decided they are left out, and their agents clean up.
//
// If the job has published a checkpoint, its assignments name the last one (in out_dir) in
// restart.resume. A worker that then finds no checkpoint there, not even an older one, does not
// begin at step 0 (worker/train/step/resume.h).
std::vector<v1::WorkerAssignment> DesiredOn(const std::string& node,
                                            const std::vector<JobPtr>& active);

}  // namespace nsa::server
