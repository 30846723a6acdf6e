// What should run on a machine: the answer to a heartbeat. Pure.
#pragma once

#include <string>
#include <vector>

#include "nsa/v1/fleet.pb.h"
#include "server/job_store.h"

namespace nsa::server {

// Ranks of STARTING, RUNNING and STOPPING jobs run, with the stop that is in force. When one was
// lost the others are killed but kept, so that their ends are reported; once the cause has been
// judged they are left out, and their agents clean up.
std::vector<v1::WorkerAssignment> DesiredOn(const std::string& node,
                                            const std::vector<JobPtr>& active);

}  // namespace nsa::server
