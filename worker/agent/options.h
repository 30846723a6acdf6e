// The agent's configuration with every default filled in.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nsa/v1/config.pb.h"
#include "worker/agent/link/silence.h"
#include "worker/agent/user/cgroup.h"

namespace nsa::agent {

struct AgentOptions {
  std::string node_name;
  std::string coordinator_address;
  std::filesystem::path state_dir;  // absolute
  std::filesystem::path worker_program;
  std::filesystem::path cuda_worker_program;  // need not exist
  std::filesystem::path agent_program;        // this program, started again for `dump`
  int cpu_slots = 1;
  absl::Duration heartbeat = absl::Milliseconds(500);
  SilenceLimits silence;
  v1::TlsConfig tls;
  std::filesystem::path join_token_file;  // empty: none
  std::string secret;  // of this node, sent with every call; set by Agent::Start()
  std::vector<std::string> pass_environment;
  std::filesystem::path data_cache_dir;     // empty: the worker's default
  std::optional<int64_t> data_cache_bytes;  // the same
  std::string cuda_compat_path;             // of CUDA workers (cuda_compat.h); empty: none
  std::string rank_address;                 // for multi-machine jobs; empty: none of them run here
  std::string rank_ports;                   // FIRST-LAST; empty: any
  std::string allocation;                   // whose machines this is one of; empty: of none
  std::map<std::string, std::string> labels;  // what jobs may require of this machine
  bool unix_users = false;                    // ranks run as the Unix users of their jobs
  std::string worker_cgroup;                  // as it was configured
  CgroupHome cgroups;                         // set by Agent::Start()
};

// Fills in the defaults. InvalidArgument when a value is out of range, when cuda_compat_path has no
// library, or when the coordinator's address is not loopback and TLS is missing. Unavailable when
// no interface of this machine has rank_address. FailedPrecondition when unix_users is set and this
// process is not root.
absl::StatusOr<AgentOptions> ResolveOptions(const v1::AgentConfig& config);

}  // namespace nsa::agent
