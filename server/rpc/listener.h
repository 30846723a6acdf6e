// The gRPC server: listeners, limits, health.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/rpc/tls_files.h"
#include "grpcpp/grpcpp.h"
#include "nsa/v1/config.pb.h"
#include "server/rpc/gate/gate.h"

namespace nsa::server {

struct ListenOptions {
  std::string tcp_address;            // host:port; empty: none
  std::filesystem::path unix_socket;  // an existing file is replaced; mode 0600
  TlsFiles tls;                       // of the TCP listener; without a certificate: plaintext
  std::vector<grpc::Service*> services;
  absl::Duration ping_every;    // to every client
  absl::Duration ping_timeout;  // a connection without an answer for this long is closed
  std::function<void(const char* reason)> ended;  // of the TCP listener; see Gate::Options
};

struct Listening {
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<Gate> tcp;  // null: none
  std::unique_ptr<Gate> unix_socket;
  std::string tcp_address;  // with the actual port; empty: none
};

// Starts listening. gRPC gets its connections from the gates only. The health service reports
// NOT_SERVING until the caller changes that. Unavailable, naming the address and the cause, e.g. a
// port that is taken.
absl::StatusOr<Listening> Listen(const ListenOptions& options);

// Whether somebody could listen on `address`, host:port: tries it and lets go. OK for an empty
// address. The ports in `held` count as free: a coordinator has them that will have let go by then.
// Unavailable, naming `what`, the address and the cause.
absl::Status CheckCanListen(const std::string& what, const std::string& address,
                            const std::set<std::string>& held);

// InvalidArgument for a path that is too long for a unix socket.
absl::Status CheckSocketPath(const std::filesystem::path& path);

// InvalidArgument, naming the missing field, when only some of the three files are set: an
// incomplete `tls:` block must not silently turn encryption off.
absl::Status CheckTls(const v1::TlsConfig& tls);

// FailedPrecondition when the address is not loopback and TLS or the token is missing: everybody
// who can reach the address could start programs on this machine.
absl::Status CheckExposure(const std::string& what, const std::string& address,
                           const v1::TlsConfig& tls, const std::string& token_file);

}  // namespace nsa::server
