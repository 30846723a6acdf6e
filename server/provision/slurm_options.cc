#include "server/provision/slurm_options.h"

#include <unistd.h>

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/count.h"
#include "common/base/status.h"
#include "common/rpc/rpc.h"

namespace nsa::server {
namespace {

namespace fs = std::filesystem;

constexpr int kMostGpus = 64;
constexpr int kMostCores = 1024;
constexpr double kMostHours = 87'600;

absl::StatusOr<std::string> FindProgram(const std::string& bin_dir, const std::string& name) {
  const char* path = std::getenv("PATH");
  std::vector<std::string> folders = {bin_dir};
  if (bin_dir.empty()) folders = absl::StrSplit(path == nullptr ? "" : path, ':');
  for (const std::string& folder : folders) {
    const std::string program = absl::StrCat(folder, "/", name);
    if (!folder.empty() && access(program.c_str(), X_OK) == 0) return program;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("bin_dir: ", bin_dir.empty() ? "not set" : bin_dir, " (", name, " is not ",
                   bin_dir.empty() ? "in PATH" : "there",
                   "); install Slurm's client programs, or set bin_dir to their folder"));
}

absl::Status CheckNumbers(const v1::SlurmConfig& config) {
  if (config.has_gpus_per_node() &&
      (config.gpus_per_node() < 1 || config.gpus_per_node() > kMostGpus)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "gpus_per_node: %d (from 1 to %d); set another", config.gpus_per_node(), kMostGpus));
  }
  if (config.has_cpus_per_rank() &&
      (config.cpus_per_rank() < 1 || config.cpus_per_rank() > kMostCores)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "cpus_per_rank: %d (from 1 to %d); set another", config.cpus_per_rank(), kMostCores));
  }
  // Written so that NaN is refused too.
  if (config.has_hours() && !(config.hours() > 0 && config.hours() <= kMostHours)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("hours: %s (above 0, at most %s); set another", Number(config.hours()),
                        Number(kMostHours)));
  }
  for (const std::string& option : config.options()) {
    if (absl::StartsWith(option, "--")) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("options: '", option, "' (options that begin with --, as --mem=0); fix it"));
  }
  return absl::OkStatus();
}

// The address must lead to this machine from any other.
absl::Status CheckAddress(const v1::SlurmConfig& config) {
  const std::string& address = config.coordinator_address();
  if (address.empty()) {
    return absl::InvalidArgumentError(
        "coordinator_address: none, and listen_address is empty (agents on the nodes must reach "
        "the coordinator); set listen_address");
  }
  for (const char* prefix : {"0.0.0.0:", "[::]:", ":::", "*:", "unix:", ":"}) {
    if (!absl::StartsWith(address, prefix)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("coordinator_address: ", address,
                     " (the address by which the nodes reach this machine); set it"));
  }
  if (!IsLoopback(address) && config.tls().certificate_file().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tls: none, but the agents reach the coordinator at ", address,
        " (needs certificates; docs/security.md); set certificate_file, private_key_file and "
        "client_ca_file"));
  }
  return absl::OkStatus();
}

absl::StatusOr<SlurmOptions> Resolve(const v1::CoordinatorConfig& whole) {
  SlurmOptions options{.config = whole.provisioners().slurm()};
  v1::SlurmConfig& config = options.config;
  if (!fs::path(config.shared_dir()).is_absolute()) {
    return absl::InvalidArgumentError(
        absl::StrCat("shared_dir: '", config.shared_dir(),
                     "' (an absolute path); set it to a folder that all nodes share"));
  }
  options.shared_dir = fs::path(config.shared_dir()).lexically_normal();
  if (config.agent_program().empty()) {
    std::error_code error;
    config.set_agent_program(
        (fs::read_symlink("/proc/self/exe", error).parent_path() / "nsa-agent").string());
  }
  if (config.coordinator_address().empty()) {
    config.set_coordinator_address(whole.listen_address());
  }
  NSA_RETURN_IF_ERROR(CheckNumbers(config));
  NSA_RETURN_IF_ERROR(CheckAddress(config));
  NSA_ASSIGN_OR_RETURN(options.sbatch, FindProgram(config.bin_dir(), "sbatch"));
  NSA_ASSIGN_OR_RETURN(options.squeue, FindProgram(config.bin_dir(), "squeue"));
  NSA_ASSIGN_OR_RETURN(options.sacct, FindProgram(config.bin_dir(), "sacct"));
  NSA_ASSIGN_OR_RETURN(options.scancel, FindProgram(config.bin_dir(), "scancel"));
  return options;
}

}  // namespace

absl::StatusOr<SlurmOptions> ResolveSlurm(const v1::CoordinatorConfig& config) {
  absl::StatusOr<SlurmOptions> options = Resolve(config);
  if (!options.ok()) return Annotate(options.status(), "provisioners.slurm");
  return options;
}

}  // namespace nsa::server
