// Preflight of a placed job against the machines it was placed on.
#pragma once

#include "nsa/v1/store.pb.h"
#include "server/act/path_guard.h"
#include "server/decide/next_action.h"
#include "server/store/fleet.h"

namespace nsa::server {

// Reads data files and out_dir from this machine's disk; may take seconds. Paths are checked again,
// because a folder may have been replaced by a link since the submit. Of the GPUs only those that
// the job was placed on count, with the memory that is free on them.
LaunchCheck CheckLaunch(const v1::StoredJob& job, const Fleet& fleet, const PathGuard& paths);

}  // namespace nsa::server
