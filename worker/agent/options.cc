#include "worker/agent/options.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clean_text.h"
#include "common/base/cores.h"
#include "common/base/host_name.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/job/require.h"
#include "common/rpc/rpc.h"
#include "common/run/rank_address.h"
#include "worker/agent/cuda_compat.h"
#include "worker/agent/link/accepts.h"
#include "worker/agent/user/unix_user.h"

namespace nsa::agent {
namespace {

namespace fs = std::filesystem;

std::string Or(const std::string& value, const std::string& otherwise) {
  return value.empty() ? otherwise : value;
}

absl::Status CheckTls(const AgentOptions& options) {
  if (IsLoopback(options.coordinator_address)) return absl::OkStatus();
  if (options.tls.certificate_file().empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("coordinator_address: %s is not on this machine (needs tls); set it",
                        options.coordinator_address));
  }
  return absl::OkStatus();
}

absl::Status TakeRankAddress(const v1::AgentConfig& config, AgentOptions* options) {
  options->rank_address = config.rank_address();
  options->rank_ports = config.rank_ports();
  // The program that starts agents in an allocation does not know the addresses of its machines.
  if (options->rank_address.empty() && !options->allocation.empty()) {
    NSA_ASSIGN_OR_RETURN(options->rank_address, AddressTowards(options->coordinator_address));
  }
  if (!options->rank_ports.empty()) {
    NSA_RETURN_IF_ERROR(Annotate(ParsePortRange(options->rank_ports).status(), "rank_ports"));
    if (options->rank_address.empty()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "rank_ports: %s, but there is no rank_address; set it too", options->rank_ports));
    }
  }
  if (options->rank_address.empty()) return absl::OkStatus();
  const absl::Status found = InterfaceOf(options->rank_address).status();
  if (!absl::IsNotFound(found)) return Annotate(found, "rank_address");
  return absl::UnavailableError(absl::StrCat("rank_address: ", found.message()));
}

absl::Status CheckLabels(const v1::AgentConfig& config) {
  if (config.labels_size() > kMostRequired) {
    return absl::InvalidArgumentError(
        absl::StrFormat("labels: %d (at most %d); use fewer", config.labels_size(), kMostRequired));
  }
  for (const auto& [key, value] : config.labels()) {
    std::string fault = LabelFault(key, value);
    if (IsOfMachine(key)) fault = "what every machine has by itself; choose another key";
    if (!fault.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("labels.", CutText(CleanText(key), 80), ": ", fault));
    }
  }
  return absl::OkStatus();
}

// Of the key `key`.
absl::StatusOr<fs::path> AbsoluteOf(const char* key, const std::string& path) {
  std::error_code error;
  fs::path absolute = fs::absolute(path, error);
  if (!error) return absolute;
  return absl::InvalidArgumentError(absl::StrCat(key, ": the current folder is gone (",
                                                 error.message(), "); use an absolute path"));
}

}  // namespace

absl::StatusOr<AgentOptions> ResolveOptions(const v1::AgentConfig& config) {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  const fs::path state = DefaultStateDir();
  NSA_ASSIGN_OR_RETURN(const fs::path state_dir,
                       AbsoluteOf("state_dir", Or(config.state_dir(), (state / "agent").string())));
  AgentOptions options = {
      .node_name = Or(config.node_name(), Or(HostName(), "localhost")),
      .coordinator_address =
          Or(config.coordinator_address(), "unix:" + (state / "coordinator.sock").string()),
      .state_dir = state_dir,
      .worker_program = Or(config.worker_program(), self.parent_path() / "nsa-worker"),
      .cuda_worker_program =
          Or(config.cuda_worker_program(), self.parent_path() / "nsa-worker-cuda"),
      .agent_program = self,
      .cpu_slots = config.has_cpu_slots() ? config.cpu_slots() : UsableCores(),
      .tls = config.tls(),
      .pass_environment = {config.pass_environment().begin(), config.pass_environment().end()}};
  if (options.cpu_slots < 0 || options.cpu_slots > 4096) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cpu_slots: %d (from 0 to 4096)", options.cpu_slots));
  }
  const double seconds = config.has_heartbeat_seconds() ? config.heartbeat_seconds() : 0.5;
  if (!(seconds >= 0.01 && seconds <= 60)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("heartbeat_seconds: %g (from 0.01 to 60)", seconds));
  }
  options.heartbeat = absl::Seconds(seconds);
  if (!limits::IsPlainName(options.node_name, limits::kNodeNameBytes)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("node_name: '%s' (1 to %d letters, digits and -_., not beginning with - or "
                        ".); set another",
                        absl::CHexEscape(options.node_name.substr(0, 80)), limits::kNodeNameBytes));
  }
  NSA_ASSIGN_OR_RETURN(
      options.cuda_compat_path,
      FindCudaCompat(config.cuda_compat_path(), KernelDriverVersion(), UsualCompatFolders()));
  options.join_token_file = config.join_token_file();
  if (!config.data_cache_dir().empty()) {
    NSA_ASSIGN_OR_RETURN(options.data_cache_dir,
                         AbsoluteOf("data_cache_dir", config.data_cache_dir()));
  }
  if (config.has_data_cache_bytes()) options.data_cache_bytes = config.data_cache_bytes();
  if (options.data_cache_bytes.value_or(0) < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("data_cache_bytes: %d (at least 0, which keeps nothing); set it",
                        *options.data_cache_bytes));
  }
  options.allocation = config.allocation();
  NSA_RETURN_IF_ERROR(CheckLabels(config));
  options.labels = {config.labels().begin(), config.labels().end()};
  options.unix_users = config.unix_users();
  if (options.unix_users) NSA_RETURN_IF_ERROR(CheckMayStartAsOthers());
  options.worker_cgroup = config.worker_cgroup();
  NSA_RETURN_IF_ERROR(TakeRankAddress(config, &options));
  NSA_RETURN_IF_ERROR(CheckTls(options));
  return options;
}

}  // namespace nsa::agent
