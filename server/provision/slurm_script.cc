#include "server/provision/slurm_script.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "nlohmann/json.hpp"
#include "server/decide/allocation/allocation.h"

namespace nsa::server {
namespace {

constexpr double kOwnLimitSlackMinutes = 10;

// For a shell.
std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// For YAML, which includes JSON.
std::string Yaml(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

int RanksPerNode(const v1::JobSpec& spec) {
  const int machines = MachinesOf(spec);
  return (std::max(spec.resources().gpus(), 1) + machines - 1) / machines;
}

int CoresPerNode(const v1::JobSpec& spec, const v1::SlurmConfig& config) {
  return RanksPerNode(spec) * (config.has_cpus_per_rank() ? config.cpus_per_rank() : 1);
}

std::string PerNode(const v1::JobSpec& spec, const v1::SlurmConfig& config) {
  std::string text = absl::StrCat("--cpus-per-task=", CoresPerNode(spec, config));
  if (const int gpus = GpusPerNode(spec, config); gpus > 0) {
    absl::StrAppend(&text, " --gpus-per-node=", gpus);
  }
  return text;
}

}  // namespace

int GpusPerNode(const v1::JobSpec& spec, const v1::SlurmConfig& config) {
  const v1::Device device = spec.runtime().device();
  if (device == v1::DEVICE_CPU) return 0;
  if (config.has_gpus_per_node()) return config.gpus_per_node();
  return device == v1::DEVICE_CUDA ? RanksPerNode(spec) : 0;
}

int64_t LimitMinutes(const v1::StoredJob& job, const v1::SlurmConfig& config) {
  const v1::LimitSpec& limits = job.job().spec().limits();
  if (limits.has_hours()) {
    const double left = std::max(0.0, limits.hours() * 60 - job.run_seconds() / 60);
    return static_cast<int64_t>(std::ceil(left + kOwnLimitSlackMinutes));
  }
  return config.has_hours() ? static_cast<int64_t>(std::ceil(config.hours() * 60)) : 0;
}

absl::Status CheckLimit(const v1::StoredJob& job, const v1::SlurmConfig& config) {
  const int64_t minutes = LimitMinutes(job, config);
  const double grace = job.job().spec().restart().stop_grace_seconds();
  if (minutes == 0 || static_cast<double>(minutes) * 60 > 2 * grace) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("time limit: %d min (more than twice restart.stop_grace_seconds, %g); set "
                      "provisioners.slurm.hours higher, or the grace lower",
                      minutes, grace));
}

std::vector<std::string> SbatchArguments(const v1::StoredJob& job, const SlurmOptions& options,
                                         const std::filesystem::path& folder) {
  const v1::SlurmConfig& config = options.config;
  const v1::JobSpec& spec = job.job().spec();
  const std::string name = ClusterName(job.job().allocation().id());
  std::vector<std::string> arguments = {
      "--parsable",
      absl::StrCat("--job-name=", name),
      absl::StrCat("--comment=", name),
      "--no-requeue",  // this service asks again by itself
      absl::StrCat("--nodes=", MachinesOf(spec)),
      "--ntasks-per-node=1",
      absl::StrCat("--cpus-per-task=", CoresPerNode(spec, config)),
      absl::StrCat("--chdir=", folder.string()),
      absl::StrCat("--output=", (folder / "allocation.log").string()),
      "--open-mode=append"};
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) arguments.push_back(absl::StrCat("--", option, "=", value));
  };
  if (const int gpus = GpusPerNode(spec, config); gpus > 0) {
    add("gpus-per-node", absl::StrCat(gpus));
  }
  if (const int64_t minutes = LimitMinutes(job, config); minutes > 0) {
    add("time", absl::StrCat(minutes));
  }
  add("partition", config.partition());
  add("account", config.account());
  add("qos", config.qos());
  for (const std::string& option : config.options()) arguments.push_back(option);
  arguments.push_back((folder / "run.sh").string());
  return arguments;
}

std::string RunScript(const v1::StoredJob& job, const SlurmOptions& options,
                      const std::filesystem::path& folder) {
  const std::string dir = Quoted(folder.string());
  // Without the folder the allocation is over already.
  return absl::StrCat("#!/bin/sh\numask 077\n[ -d ", dir, " ] || exit 0\n",
                      "exec srun --ntasks-per-node=1 --kill-on-bad-exit=1 ",
                      PerNode(job.job().spec(), options.config),
                      " --output=", Quoted((folder / "agent-%t.log").string()), " /bin/sh ",
                      Quoted((folder / "agent.sh").string()), "\n");
}

std::string AgentScript(const SlurmOptions& options, const std::filesystem::path& folder) {
  // A signal reaches the agent too; the shell waits for its end. Exit codes:
  // worker/agent/README.md.
  return absl::StrCat(R"(#!/bin/sh
umask 077
stop=
trap stop=1 TERM INT
state=$(mktemp -d "${TMPDIR:-/tmp}/nsa-XXXXXXXXXX") || exit 1
starts=0
while :; do
  )",
                      Quoted(options.config.agent_program()), " --config ",
                      Quoted(folder.string() + "/"),
                      R"("agent-$SLURM_PROCID.yaml" --state-dir "$state"
  code=$?
  starts=$((starts + 1))
  [ $code -eq 7 ] || [ $code -gt 128 ] || break
  [ -z "$stop" ] && [ $starts -lt 20 ] || break
  sleep 1
done
rm -rf "$state"
exit $code
)");
}

std::string AgentYaml(const v1::StoredJob& job, const SlurmOptions& options,
                      const std::filesystem::path& folder, int machine) {
  const v1::Allocation& allocation = job.job().allocation();
  const v1::SlurmConfig& config = options.config;
  const auto line = [](const std::string& key, const std::string& value) {
    return value.empty() ? "" : absl::StrCat(key, ": ", Yaml(value), "\n");
  };
  std::string yaml = absl::StrCat(
      line("node_name", AllocatedNode(allocation, machine)), line("allocation", allocation.id()),
      line("coordinator_address", config.coordinator_address()),
      line("join_token_file", (folder / absl::StrCat("agent-", machine, ".token")).string()),
      "cpu_slots: ", RanksPerNode(job.job().spec()), "\n");
  if (config.has_tls()) {
    absl::StrAppend(&yaml, "tls:\n", line("  certificate_file", config.tls().certificate_file()),
                    line("  private_key_file", config.tls().private_key_file()),
                    line("  client_ca_file", config.tls().client_ca_file()));
  }
  return yaml;
}

}  // namespace nsa::server
