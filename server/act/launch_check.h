// Preflight of a job at submit, against the machines that there are, and of a placed job against
// those that it was placed on.
#pragma once

#include "common/preflight/preflight.h"
#include "nsa/v1/preflight.pb.h"
#include "nsa/v1/store.pb.h"
#include "server/act/path_guard.h"
#include "server/act/work_budget.h"
#include "server/decide/next_action.h"
#include "server/store/fleet.h"

namespace nsa::server {

// Reads data files and out_dir from this machine's disk; may take seconds. Paths are checked again,
// because a folder may have been replaced by a link since the submit. Of the GPUs only those that
// the job was placed on count, with the memory that is free on them. Refuses what takes longer than
// the budget, which may pass later.
LaunchCheck CheckLaunch(const v1::StoredJob& job, const Fleet& fleet, const PathGuard& paths,
                        const WorkBudget& work);

// The report for a submit. `spec` has its defaults filled in. The job is checked against the ready
// machine that suits it best; a device that it leaves open is a GPU if any of them has one, as when
// it is placed. Without a ready machine the rules about machines do not apply, nor to a job that
// gets machines of its own. `context` has what the caller knows besides the machines.
v1::PreflightReport CheckSubmit(v1::JobSpec spec, const Fleet& fleet, const Cordons& cordons,
                                PreflightContext context);

}  // namespace nsa::server
