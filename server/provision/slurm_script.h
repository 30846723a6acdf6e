// What runs in an allocation of Slurm, as text. Pure.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nsa/v1/store.pb.h"
#include "server/provision/slurm_options.h"

namespace nsa::server {

// The arguments of sbatch for a job, without the program. `folder`: of its allocation.
std::vector<std::string> SbatchArguments(const v1::StoredJob& job, const SlurmOptions& options,
                                         const std::filesystem::path& folder);

// run.sh, the script of the allocation: starts agent.sh once on each machine.
std::string RunScript(const v1::StoredJob& job, const SlurmOptions& options,
                      const std::filesystem::path& folder);

// agent.sh: runs the agent with a state folder on the machine's own disk, again when it was killed,
// and removes that folder.
std::string AgentScript(const SlurmOptions& options, const std::filesystem::path& folder);

// agent-N.yaml.
std::string AgentYaml(const v1::StoredJob& job, const SlurmOptions& options,
                      const std::filesystem::path& folder, int machine);

// GPUs to ask for on each machine; 0: none. A job that leaves its device open gets GPUs if the
// configuration names a number.
int GpusPerNode(const v1::JobSpec& spec, const v1::SlurmConfig& config);

// The time limit in minutes, rounded up; 0: the partition's. A job with limits.hours gets what is
// left of them and ten minutes more, so that it ends by its own limit.
int64_t LimitMinutes(const v1::StoredJob& job, const v1::SlurmConfig& config);

// InvalidArgument when the job would spend half of such an allocation or more on stopping.
absl::Status CheckLimit(const v1::StoredJob& job, const v1::SlurmConfig& config);

}  // namespace nsa::server
