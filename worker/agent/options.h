// The agent's configuration with every default filled in.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nsa/v1/config.pb.h"

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
  v1::TlsConfig tls;
  std::string token;  // empty: none
  std::vector<std::string> pass_environment;
};

// Fills in the defaults. Without a token_file, the token for a TCP address on loopback is that of
// this machine's coordinator (LocalToken() in common/rpc). InvalidArgument when a value is out of
// range, or when the coordinator's address is not loopback and TLS or the token is missing;
// NotFound when the token file does not exist.
absl::StatusOr<AgentOptions> ResolveOptions(const v1::AgentConfig& config);

// Number of cores that this process may use (its CPU affinity).
int UsableCores();

}  // namespace nsa::agent
