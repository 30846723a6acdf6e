// Preflight of a placed job against the machines it was placed on, and slots as the scheduler sees
// them.
#pragma once

#include <string>
#include <vector>

#include "server/fleet.h"
#include "server/job_store.h"
#include "server/path_guard.h"
#include "server/scheduler.h"

namespace nsa::server {

struct LaunchCheck {
  bool accepted = false;
  std::string nodes;     // names, for people
  std::string problem;   // the first finding that refuses
  bool passing = false;  // all that refuses may go by itself: a full disk, memory taken by others
};

// Reads data files and out_dir of this machine; may take seconds. Paths are looked at again: what
// was a folder at the submit may be a link by now. Of GPUs those count that the job was placed on,
// with the memory that is free there.
LaunchCheck CheckLaunch(const v1::StoredJob& job, const Fleet& fleet, const PathGuard& paths);

// A machine's slots, less those that active jobs hold. The GPU with the most free memory comes
// first (to the GiB), since a program that is no job of ours may use one.
NodeSlots FreeSlots(const v1::NodeInfo& info, const std::vector<JobPtr>& active);

// `any_gpu`: a job that leaves its device open takes a GPU.
QueuedJob InQueue(const v1::StoredJob& job, bool any_gpu);

}  // namespace nsa::server
