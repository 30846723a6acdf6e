#include "common/rpc/rpc.h"

#include <arpa/inet.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/clean_text.h"
#include "common/base/environment.h"
#include "common/base/status.h"
#include "common/rpc/service_config.h"
#include "common/rpc/tls_files.h"
#include "google/rpc/status.pb.h"

namespace nsa {
namespace {

constexpr char kDomain[] = "nsa.dev";
// Message and details are sent in one block of trailing metadata. A receiver with default settings
// drops a status with more than 8 KB of metadata and reports RESOURCE_EXHAUSTED instead.
constexpr size_t kMaxMessageBytes = 1500;
constexpr size_t kMaxDetailBytes = 6000;
constexpr size_t kMaxViolations = 32;
constexpr size_t kMaxFieldBytes = 128;
constexpr size_t kMaxDescriptionBytes = 400;
constexpr char kCut[] = "...";

// Bytes of `text` in the grpc-message header, where each byte that is not printable ASCII takes
// three bytes, and so does %.
size_t EncodedBytes(std::string_view text) {
  size_t bytes = 0;
  for (const char c : text) bytes += (absl::ascii_isprint(c) && c != '%') ? 1 : 3;
  return bytes;
}

// The longest prefix that is valid UTF-8 and, with "..." at its end, takes at most `limit` encoded
// bytes.
std::string Cut(const std::string& text, size_t limit) {
  if (EncodedBytes(text) <= limit) return text;
  size_t bytes = sizeof(kCut) - 1;
  size_t length = 0;
  while (length < text.size()) {
    bytes += EncodedBytes(std::string_view(text).substr(length, 1));
    if (bytes > limit) break;
    ++length;
  }
  return std::string(Shorten(text, length)) + kCut;
}

google::rpc::BadRequest CutViolations(const std::vector<FieldViolation>& violations, size_t limit) {
  google::rpc::BadRequest request;
  // Reserve space for the last entry, which says how many violations were left out.
  limit -= std::min<size_t>(limit, 64);
  size_t taken = 0;
  for (const FieldViolation& violation : violations) {
    if (taken == kMaxViolations) break;
    auto* entry = request.add_field_violations();
    entry->set_field(Cut(violation.field, kMaxFieldBytes));
    entry->set_description(Cut(violation.description, kMaxDescriptionBytes));
    if (request.ByteSizeLong() > limit) {
      request.mutable_field_violations()->RemoveLast();
      break;
    }
    ++taken;
  }
  if (taken < violations.size()) {
    request.add_field_violations()->set_description(
        absl::StrCat("and ", violations.size() - taken, " more"));
  }
  return request;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(const v1::TlsConfig& tls) {
  if (tls.certificate_file().empty() && tls.private_key_file().empty() &&
      tls.client_ca_file().empty()) {
    return grpc::InsecureChannelCredentials();
  }
  // gRPC would silently ignore a certificate without a key, or a key without a certificate.
  if (tls.certificate_file().empty() != tls.private_key_file().empty()) {
    return absl::InvalidArgumentError(
        tls.private_key_file().empty()
            ? absl::StrCat("tls.certificate_file: ", tls.certificate_file(),
                           " without private_key_file; give both")
            : absl::StrCat("tls.private_key_file: ", tls.private_key_file(),
                           " without certificate_file; give both"));
  }
  NSA_ASSIGN_OR_RETURN(TlsFiles files, ReadTlsFiles(tls, absl::Now()));
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = std::move(files.authorities);
  options.pem_cert_chain = std::move(files.certificate);
  options.pem_private_key = std::move(files.private_key);
  return grpc::SslCredentials(options);
}

bool IsUnix(const std::string& address) {
  return absl::StartsWith(address, "unix:") || absl::StartsWith(address, "unix-abstract:");
}

// The host of "host:port", "[v6]:port" or a bare host.
std::string HostOf(absl::string_view address) {
  for (const absl::string_view scheme : {"dns:///", "dns:", "ipv4:", "ipv6:"}) {
    if (absl::ConsumePrefix(&address, scheme)) break;
  }
  if (absl::ConsumePrefix(&address, "[")) return std::string(address.substr(0, address.find(']')));
  const size_t colon = address.rfind(':');
  // Several colons without brackets: an IPv6 address without a port.
  if (colon != absl::string_view::npos && address.find(':') == colon) {
    address = address.substr(0, colon);
  }
  return std::string(address);
}

}  // namespace

void SilenceGrpc() { setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0); }

grpc::Status ToGrpc(const absl::Status& status, const std::string& reason,
                    const std::vector<FieldViolation>& violations) {
  if (status.ok()) return grpc::Status::OK;
  const auto code = static_cast<grpc::StatusCode>(status.code());
  const std::string message = Cut(std::string(status.message()), kMaxMessageBytes);

  google::rpc::Status details;
  details.set_code(static_cast<int32_t>(code));
  details.set_message(message);
  google::rpc::ErrorInfo info;
  info.set_reason(reason.empty() ? absl::StatusCodeToString(status.code()) : Cut(reason, 63));
  info.set_domain(kDomain);
  details.add_details()->PackFrom(info);
  if (!violations.empty()) {
    const size_t used = details.ByteSizeLong() + EncodedBytes(message) + 64;
    const size_t room = used < kMaxDetailBytes ? kMaxDetailBytes - used : 0;
    details.add_details()->PackFrom(CutViolations(violations, room));
  }
  return grpc::Status(code, message, details.SerializeAsString());
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

ErrorDetails DetailsOf(const grpc::Status& status) {
  ErrorDetails result;
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return result;
  for (const google::protobuf::Any& any : details.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest request;
    if (any.UnpackTo(&info)) result.reason = info.reason();
    if (!any.UnpackTo(&request)) continue;
    for (const auto& violation : request.field_violations()) {
      result.violations.push_back({violation.field(), violation.description()});
    }
  }
  return result;
}

bool IsLoopback(const std::string& address) {
  if (IsUnix(address)) return true;
  const std::string host = HostOf(address);
  if (host == "localhost") return true;
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const std::string& address,
                                                           const v1::TlsConfig& tls,
                                                           absl::Duration attempt) {
  NSA_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials,
                       Credentials(tls));
  grpc::ChannelArguments arguments;
  // The server allows a ping every 30 s and disconnects a client that pings more often.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 60'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Reconnect to a restarted coordinator within seconds, not minutes.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  // The time that an attempt to connect may take, whatever its name says: over a long line TLS
  // needs several round trips, and a busy coordinator some time to answer.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                   static_cast<int>(absl::ToInt64Milliseconds(attempt)));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2'000);
  // A second channel to the same address gets a connection of its own: it is opened when the first
  // has failed.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Ignore $http_proxy: agents and clients talk to their own coordinator.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(16 << 20);
  arguments.SetMaxSendMessageSize(4 << 20);
  arguments.SetServiceConfigJSON(ServiceConfig());
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

std::unique_ptr<grpc::ClientContext> MakeContext(absl::Duration timeout, const std::string& token) {
  auto context = std::make_unique<grpc::ClientContext>();
  if (timeout != absl::InfiniteDuration()) {
    context->set_deadline(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(timeout));
  }
  if (!token.empty()) context->AddMetadata("authorization", absl::StrCat("Bearer ", token));
  return context;
}

std::string WarningOf(const grpc::ClientContext& context) {
  const auto& trailing = context.GetServerTrailingMetadata();
  const auto found = trailing.find(kWarningKey);
  return found == trailing.end() ? "" : std::string(found->second.data(), found->second.size());
}

std::string DefaultStateDir() {
  if (const std::string dir = Environment("NSA_STATE_DIR"); !dir.empty()) return dir;
  if (const std::string dir = Environment("XDG_STATE_HOME"); !dir.empty()) return dir + "/nsa";
  if (const std::string home = Environment("HOME"); !home.empty()) {
    return home + "/.local/state/nsa";
  }
  const passwd* user = getpwuid(getuid());
  return absl::StrCat(user != nullptr ? user->pw_dir : "", "/.local/state/nsa");
}

std::string LocalToken(const std::string& address) {
  if (IsUnix(address) || !IsLoopback(address)) return "";
  std::ifstream file(absl::StrCat(DefaultStateDir(), "/", kTokenFileName));
  std::string token;
  std::getline(file, token);
  return std::string(absl::StripAsciiWhitespace(token));
}

}  // namespace nsa
