// provisioners.slurm of the configuration with every default filled in, and checked.
#pragma once

#include <filesystem>
#include <string>

#include "absl/status/statusor.h"
#include "nsa/v1/config.pb.h"

namespace nsa::server {

// Jobs name it so in resources.provisioner.
inline constexpr char kSlurm[] = "slurm";

struct SlurmOptions {
  v1::SlurmConfig config;  // with agent_program and coordinator_address
  std::filesystem::path shared_dir;
  std::string sbatch, squeue, sacct, scancel;  // programs, absolute
};

// InvalidArgument with the field, the value and what to do. Looks for Slurm's programs.
absl::StatusOr<SlurmOptions> ResolveSlurm(const v1::CoordinatorConfig& config);

}  // namespace nsa::server
