// Carries out the successive halving of sweeps (decide/sweep/halving.h).
#pragma once

#include "absl/time/time.h"
#include "server/store/job_store.h"

namespace nsa::server {

// Resumes and drops jobs of every sweep in which something is to be decided; each job is one
// transaction. Called by the reconciler in every tick.
void AdvanceSweeps(JobStore& store, absl::Time now);

}  // namespace nsa::server
