#include "server/rpc/listener.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/fd.h"
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
  // Connections that never send anything are closed, so that they do not use up file descriptors.
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
  grpc::ResourceQuota quota("nsa-coordinator");
  quota.Resize(256 << 20);
  builder->SetResourceQuota(quota);
}

struct HostPort {
  std::string host;  // without the brackets of an IPv6 address
  std::string port;
};

HostPort Split(const std::string& address) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  return {host, address.substr(colon + 1)};
}

// Listens, and lets go again. Returns 0 or what errno says.
int TryToListen(const addrinfo& address) {
  const Fd fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // As gRPC does: connections that have ended keep no port.
  constexpr int kOn = 1;
  const bool listens =
      fd.valid() && setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &kOn, sizeof kOn) == 0 &&
      bind(fd.get(), address.ai_addr, address.ai_addrlen) == 0 && listen(fd.get(), 1) == 0;
  return listens ? 0 : errno;
}

// gRPC's side of the gate: takes its connections.
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

absl::Status CheckAddress(const std::string& what, const std::string& address) {
  if (address.empty()) return absl::OkStatus();
  const size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  const std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const bool host_good = bracketed || (!host.empty() && host.find_first_of(":[]/, ") == host.npos);
  const bool digits = !port.empty() && port.find_first_not_of("0123456789") == port.npos;
  int number = 0;
  if (host_good && digits && absl::SimpleAtoi(port, &number) && number <= 65'535) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": '", address,
                   "' (HOST:PORT with a port from 0 to 65535); write e.g. 127.0.0.1:50951"));
}

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
  HostPort at = Split(address);
  if (held.contains(at.port)) at.port = "0";
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(at.host.c_str(), at.port.c_str(), &hints, &found);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  std::string why = error != 0 ? gai_strerror(error) : "";
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const int refused = TryToListen(*each);
    if (refused == 0) return absl::OkStatus();
    why = std::strerror(refused);
  }
  return absl::UnavailableError(
      absl::StrCat(what, ": ", address, " cannot be listened on (", why,
                   "); `ss -ltnp` shows which process has the port; choose another, or an address "
                   "of this machine"));
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
    NSA_ASSIGN_OR_RETURN(listening.gate, Gate::Open({.address = options.tcp_address,
                                                     .tls = options.tls,
                                                     .limits = GateLimits::OfThisProcess(),
                                                     .ended = options.ended}));
    listening.tcp_address = listening.gate->address();
  }
  // No reflection: gRPC's unpacks whatever anybody sends. This is global to the process.
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  SetLimits(options, &builder);
  std::function<void(Fd)> taker;
  if (listening.gate != nullptr) taker = TakerFor(&builder);
  std::error_code error;
  std::filesystem::remove(options.unix_socket, error);
  builder.AddListeningPort(absl::StrCat("unix:", options.unix_socket.string()),
                           grpc::InsecureServerCredentials());
  for (grpc::Service* service : options.services) builder.RegisterService(service);
  listening.server = builder.BuildAndStart();
  if (listening.server == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("state_dir: ", options.unix_socket.string(),
                     " cannot be listened on; check the space and the mode of its folder"));
  }
  if (chmod(options.unix_socket.c_str(), 0600) != 0) {
    return absl::InternalError(absl::StrCat("state_dir: ", options.unix_socket.string(),
                                            " cannot be made private (", std::strerror(errno),
                                            "); choose another --state-dir"));
  }
  listening.server->GetHealthCheckService()->SetServingStatus(false);
  if (listening.gate != nullptr) listening.gate->Start(std::move(taker));
  return listening;
}

}  // namespace nsa::server
