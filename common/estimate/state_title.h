// What the state and the end of a job are called: one set of words for the page, nsactl, reports,
// notices and logs.
// The states themselves (RUNNING) are in formats for programs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "nsa/v1/job_status.pb.h"
#include "nsa/v1/telemetry.pb.h"

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

// Whether a text says "step 500" of step 500.
bool NamesStep(std::string_view text, int64_t step);

// How a rank ended: "RANK_KILLED after step 500: ...", or "STOPPED: stopped as asked after step
// 500" if the text says where.
std::string EndText(const v1::WorkerFinished& end);

}  // namespace nsa
