// The gRPC server: listeners, limits, health, reflection.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "grpcpp/grpcpp.h"
#include "nsa/v1/config.pb.h"

namespace nsa::server {

struct ListenOptions {
  std::string tcp_address;            // host:port; empty: none
  std::filesystem::path unix_socket;  // replaces a stale file; mode 0600
  v1::TlsConfig tls;                  // of the TCP listener
  std::vector<grpc::Service*> services;
  absl::Duration ping_every;    // to every client
  absl::Duration ping_timeout;  // without an answer the connection and its streams end
};

struct Listening {
  std::unique_ptr<grpc::Server> server;
  std::string tcp_address;  // with the port that was taken; empty: none
};

// Starts listening; health says NOT_SERVING until it is told otherwise. Unavailable, naming the
// address, when a port is taken.
absl::StatusOr<Listening> Listen(const ListenOptions& options);

// InvalidArgument unless `address` is host:port ([host]:port for IPv6) with a port from 0 to 65535;
// an empty one is none, and good.
absl::Status CheckAddress(const std::string& what, const std::string& address);

// InvalidArgument, naming what is missing, when some of the three files are set and others not:
// half of a `tls:` block must not mean that nothing is encrypted.
absl::Status CheckTls(const v1::TlsConfig& tls);

// FailedPrecondition when the address is not loopback and TLS or token are missing: everybody who
// can reach it could start programs here.
absl::Status CheckExposure(const std::string& what, const std::string& address,
                           const v1::TlsConfig& tls, const std::string& token_file);

}  // namespace nsa::server
