// A machine as preflight sees it.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/preflight/preflight.h"
#include "nsa/v1/fleet.pb.h"
#include "nsa/v1/store.pb.h"

namespace nsa::server {

// Whether the machine has reported which GPUs it has. A starting agent asks the driver only after
// its first heartbeat; until then nothing is placed on the machine.
inline bool KnowsItsGpus(const v1::NodeInfo& info) { return info.gpus_age_seconds() >= 0; }

MachineView MachineViewOf(const v1::NodeInfo& info);

// The GPUs of a machine that are taken out: UUID to "NVIDIA A100 GPU-1 is taken out (XID 79: …)".
std::map<std::string, std::string> FaultyGpus(const v1::NodeInfo& info);

// A sentence for each rank that runs on one of these GPUs.
std::vector<std::string> RanksOnFaultyGpus(const v1::StoredJob& job,
                                           const std::map<std::string, std::string>& faulty);

// The machine by which a submitted job is judged: the one with the fewest errors of preflight that
// the job does not waive. Among equals, one that is not cordoned, then the one with the most GPUs,
// then the most memory. Null if there are none. Reads no files.
const MachineView* BestMachine(const v1::JobSpec& spec, std::span<const MachineView> machines);

}  // namespace nsa::server
