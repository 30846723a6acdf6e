// What the state of a job is called: one set of words for the page, nsactl, reports and notices.
// The states themselves (RUNNING) are in formats for programs.
#pragma once

#include <string>

#include "nsa/v1/job_status.pb.h"

namespace nsa {

// "waiting", "starting", "training", "restarting", "stopping"; at the end "finished", "failed",
// "stopped". QUEUED and PREFLIGHT are both "waiting". "unknown(17)" for a state of a newer
// coordinator.
std::string StateTitle(v1::Job::State state);

// The same of a job. Of a halved sweep (sweep.halve_at) a job is "waiting" while it has stopped for
// the others, and "dropped" when it was not in the better half.
std::string StateTitle(const v1::Job& job);

// At a step of sweep.halve_at, until the other jobs of its sweep have reached it.
bool WaitsForSweep(const v1::Job& job);

// By the halving of its sweep.
bool WasDropped(const v1::Job& job);

}  // namespace nsa
