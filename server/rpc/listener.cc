#include "server/rpc/listener.h"

#include <sys/un.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/fd.h"
#include "common/base/listen.h"
#include "common/base/status.h"
#include "common/rpc/rpc.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"

namespace nsa::server {
namespace {

constexpr int kLargestRequest = 4 << 20;
constexpr int kLargestReply = 16 << 20;

bool HasTls(const v1::TlsConfig& tls) {
  return !tls.certificate_file().empty() && !tls.private_key_file().empty() &&
         !tls.client_ca_file().empty();
}

void SetLimits(const ListenOptions& options, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(kLargestRequest);
  builder->SetMaxSendMessageSize(kLargestReply);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 8 << 10);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 256);
  // A compressed message is inflated whole before its size is checked and before the caller is
  // known: 256 kB of zeros become 256 MB. Our clients send none.
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder->SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  // How many bytes a stream may buffer before the next message is made.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, 64 << 10);
  // A client that has vanished is noticed within the sum of both. Clients send pings every 60 s.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS,
                              static_cast<int>(absl::ToInt64Milliseconds(options.ping_every)));
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                              static_cast<int>(absl::ToInt64Milliseconds(options.ping_timeout)));
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 30'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 15 * 60'000);
  // A client has to send its settings by then; the gates wait as long for its greeting.
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
  grpc::ResourceQuota quota("nsa-coordinator");
  quota.Resize(256 << 20);
  builder->SetResourceQuota(quota);
}

// gRPC's side of the gates: takes their connections. Thread-safe.
std::function<void(Fd)> TakerFor(grpc::ServerBuilder* builder) {
  using Builder = grpc::ServerBuilder::experimental_type;
  const std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor =
      builder->experimental().AddExternalConnectionAcceptor(
          Builder::ExternalConnectionType::FROM_FD, grpc::InsecureServerCredentials());
  return [acceptor](Fd connection) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
    parameters.fd = connection.Release();
    acceptor->HandleNewConnection(&parameters);
  };
}

}  // namespace

absl::Status CheckSocketPath(const std::filesystem::path& path) {
  if (path.native().size() < sizeof(sockaddr_un::sun_path)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("state_dir: %s is too long for a socket (%d characters of at most %d); "
                      "choose a shorter one",
                      path.string(), path.native().size(), sizeof(sockaddr_un::sun_path) - 1));
}

absl::Status CheckCanListen(const std::string& what, const std::string& address,
                            const std::set<std::string>& held) {
  if (address.empty()) return absl::OkStatus();
  const bool is_held = held.contains(address.substr(address.rfind(':') + 1));
  return ListenOnAll(what, address, /*any_port=*/is_held).status();
}

absl::Status CheckTls(const v1::TlsConfig& tls) {
  const std::pair<const char*, bool> given[] = {
      {"tls.certificate_file", !tls.certificate_file().empty()},
      {"tls.private_key_file", !tls.private_key_file().empty()},
      {"tls.client_ca_file", !tls.client_ca_file().empty()}};
  const auto is_given = [](const auto& field) { return field.second; };
  if (std::ranges::none_of(given, is_given)) return absl::OkStatus();
  for (const auto& [field, there] : given) {
    if (there) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        field,
        ": not set (tls needs certificate_file, private_key_file and client_ca_file); set "
        "it, or none of them"));
  }
  return absl::OkStatus();
}

absl::Status CheckExposure(const std::string& what, const std::string& address,
                           const v1::TlsConfig& tls, const std::string& token_file) {
  if (address.empty() || IsLoopback(address)) return absl::OkStatus();
  if (HasTls(tls) && !token_file.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what, ": ", address,
                   " can be reached from other machines (loopback only without tls and "
                   "token_file); set both, or listen on 127.0.0.1"));
}

absl::StatusOr<Listening> Listen(const ListenOptions& options) {
  NSA_RETURN_IF_ERROR(CheckSocketPath(options.unix_socket));
  Listening listening;
  if (!options.tcp_address.empty()) {
    NSA_ASSIGN_OR_RETURN(listening.tcp, Gate::Open({.address = options.tcp_address,
                                                    .tls = options.tls,
                                                    .limits = GateLimits::OfTcp(),
                                                    .ended = options.ended}));
    listening.tcp_address = listening.tcp->address();
  }
  NSA_ASSIGN_OR_RETURN(listening.unix_socket,
                       Gate::Open({.address = absl::StrCat("unix:", options.unix_socket.string()),
                                   .tls = {},
                                   .limits = GateLimits::OfUnixSocket(),
                                   .ended = {}}));
  // No reflection: gRPC's unpacks whatever anybody sends. This is global to the process.
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  SetLimits(options, &builder);
  const std::function<void(Fd)> taker = TakerFor(&builder);
  for (grpc::Service* service : options.services) builder.RegisterService(service);
  listening.server = builder.BuildAndStart();
  if (listening.server == nullptr) return absl::InternalError("gRPC does not start; see the log");
  listening.server->GetHealthCheckService()->SetServingStatus(false);
  listening.unix_socket->Start(taker);
  if (listening.tcp != nullptr) listening.tcp->Start(taker);
  return listening;
}

}  // namespace nsa::server
