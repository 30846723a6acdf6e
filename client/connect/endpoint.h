// Which coordinator to talk to. In order of precedence: flags, NSACTL_* environment variables, a
// context of ~/.config/nsa/config.yaml, the unix socket of this machine's coordinator.
#pragma once

#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nsa/v1/config.pb.h"

namespace nsa::client {

struct Endpoint {
  std::string address;  // host:port or unix:/path
  v1::TlsConfig tls;
  std::string token;   // empty: none
  std::string source;  // human-readable: "--address", "context lab", "default"
};

// $NSACTL_CONFIG, else $XDG_CONFIG_HOME/nsa/config.yaml, else ~/.config/nsa/config.yaml.
std::filesystem::path ClientConfigPath();

// Reads and checks the file (names set and distinct, `current` among them); empty when there is no
// file. Errors are InvalidArgument with file:line:column.
absl::StatusOr<v1::ClientConfig> ReadClientConfig(const std::filesystem::path& path);

// Replaces the file atomically; only the owner can read it.
absl::Status WriteClientConfig(const std::filesystem::path& path, const v1::ClientConfig& config);

// Null when there is none of that name.
const v1::ClientContext* FindContext(const v1::ClientConfig& config, const std::string& name);

// `address_flag` and `context_flag` are empty when not given. NotFound for a context that is not in
// the file. TLS and token come with the context in use; NSACTL_TOKEN, NSACTL_TOKEN_FILE,
// NSACTL_TLS_CA_FILE, NSACTL_TLS_CERTIFICATE_FILE and NSACTL_TLS_PRIVATE_KEY_FILE replace them.
// Without any token, a TCP address on loopback gets that of this machine's coordinator
// (LocalToken() in common/rpc).
absl::StatusOr<Endpoint> ResolveEndpoint(const std::string& address_flag,
                                         const std::string& context_flag);

// `host:port` and `unix:/path` as given; a bare path becomes a unix: address.
std::string NormalAddress(const std::string& address);

}  // namespace nsa::client
