#include "worker/train/serve/http.h"

#include <civetweb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/thread_name.h"
#include "worker/train/serve/answer.h"

namespace nsa::train::serve {
namespace {

constexpr absl::Duration kBodyTime = absl::Seconds(10);
constexpr size_t kReadBytes = 64 << 10;

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

int PortOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  }
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  }
  return -1;
}

bool IsConnection(int fd, int client_port, int server_port) {
  sockaddr_storage own{}, peer{};
  socklen_t own_size = sizeof(own), peer_size = sizeof(peer);
  return getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
         getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) == 0 &&
         PortOf(own) == server_port && PortOf(peer) == client_port;
}

// The descriptor of a connection; −1 when there is none. civetweb keeps it to itself, but says both
// ports, and on loopback no other connection to this server has the same two.
int SocketOf(const mg_request_info& info) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const std::string name = entry.path().filename().string();
    int fd = -1;
    std::from_chars(name.data(), name.data() + name.size(), fd);
    if (fd >= 0 && IsConnection(fd, info.remote_port, info.server_port)) return fd;
  }
  return -1;
}

absl::Status TooLarge(size_t most) {
  return HttpError(
      413, absl::StrFormat("body: too large (%d bytes); send fewer prompts at a time", most));
}

bool Send(mg_connection* connection, std::string_view bytes) {
  return mg_write(connection, bytes.data(), bytes.size()) == static_cast<int>(bytes.size());
}

void SendAnswer(mg_connection* connection, int status, std::string_view type, std::string_view body,
                std::string_view headers = "") {
  Send(connection,
       absl::StrCat("HTTP/1.1 ", status, " ", mg_get_response_code_text(connection, status),
                    "\r\nContent-Type: ", View(type), "\r\nContent-Length: ", body.size(),
                    "\r\nX-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n",
                    View(headers), "Connection: close\r\n\r\n", View(body)));
}

// What civetweb refuses itself, e.g. a request that is no HTTP. It has no request then.
int RefuseBadRequest(mg_connection* connection, int status, const char* message) {
  SendAnswer(connection, status, "application/json",
             ErrorJson(HttpError(status,
                                 absl::StrCat("request: refused (", message, "); send HTTP/1.1"))));
  return 0;
}

}  // namespace

HttpExchange::HttpExchange(mg_connection* connection)
    : connection_(connection), socket_(SocketOf(*mg_get_request_info(connection))) {}

std::string HttpExchange::method() const {
  const char* const method = mg_get_request_info(connection_)->request_method;
  return method == nullptr ? "" : method;
}

std::string HttpExchange::path() const {
  const char* const path = mg_get_request_info(connection_)->local_uri;
  return path == nullptr ? "" : path;
}

const char* HttpExchange::header(const char* name) const {
  return mg_get_header(connection_, name);
}

absl::StatusOr<size_t> HttpExchange::BodyBytes(size_t most) const {
  const char* const encoding = header("Transfer-Encoding");
  if (encoding != nullptr && absl::EqualsIgnoreCase(encoding, "chunked")) return most;
  const int64_t length = mg_get_request_info(connection_)->content_length;
  if (length < 0) {
    return HttpError(411, "Content-Length: missing; send the body's number of bytes");
  }
  if (static_cast<uint64_t>(length) > most) return TooLarge(most);
  return static_cast<size_t>(length);
}

absl::StatusOr<std::string> HttpExchange::ReadBody(size_t most) {
  const RealClock clock;
  const absl::Duration begun = clock.Monotonic();
  if (const char* expect = header("Expect"); expect != nullptr) {
    if (!Write("HTTP/1.1 100 Continue\r\n\r\n")) return HttpError(408, "body: the client has gone");
  }
  const int64_t length = mg_get_request_info(connection_)->content_length;
  std::string body;
  std::string part(kReadBytes, '\0');
  while (length < 0 || static_cast<int64_t>(body.size()) < length) {
    const int got = mg_read(connection_, part.data(), part.size());
    if (got == 0 && length < 0) break;  // the last chunk
    if (got <= 0 || clock.Monotonic() - begun > kBodyTime) {
      return HttpError(408, absl::StrFormat("body: %d bytes arrived (all within %s); send it again",
                                            body.size(), absl::FormatDuration(kBodyTime)));
    }
    body.append(part, 0, static_cast<size_t>(got));
    if (body.size() > most) return TooLarge(most);
  }
  return body;
}

bool HttpExchange::Write(std::string_view bytes) { return Send(connection_, bytes); }

void HttpExchange::Answer(int status, std::string_view type, std::string_view body,
                          std::string_view headers) {
  SendAnswer(connection_, status, type, body, headers);
}

bool HttpExchange::BeginStream(std::string_view type) {
  const char* const version = mg_get_request_info(connection_)->http_version;
  chunked_ = version != nullptr && std::string_view(version) == "1.1";
  return Write(absl::StrCat("HTTP/1.1 200 OK\r\nContent-Type: ", View(type),
                            chunked_ ? "\r\nTransfer-Encoding: chunked" : "",
                            "\r\nX-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n"
                            "Connection: close\r\n\r\n"));
}

bool HttpExchange::SendPart(std::string_view part) {
  if (!chunked_) return Write(part);
  return Write(absl::StrCat(absl::Hex(part.size()), "\r\n", View(part), "\r\n"));
}

void HttpExchange::EndStream() {
  if (chunked_) Write("0\r\n\r\n");
}

bool HttpExchange::gone() const {
  pollfd closed{.fd = socket_, .events = POLLRDHUP, .revents = 0};
  return socket_ >= 0 && poll(&closed, 1, 0) > 0;
}

// civetweb gives its threads 100 KiB of stack and no option for more. Tokenizers and JSON may need
// more, so the handler runs on a thread of its own with the usual size.
int HttpServer::Begin(mg_connection* connection) {
  const auto* const server =
      static_cast<const HttpServer*>(mg_get_user_data(mg_get_context(connection)));
  HttpExchange exchange(connection);
  try {
    std::thread handler([server, &exchange] { server->handle_(exchange); });
    handler.join();
  } catch (const std::system_error& error) {
    const absl::Status status = HttpError(
        503, absl::StrCat("thread: none could be started (", error.what(), "); try again later"));
    exchange.Answer(503, "application/json", ErrorJson(status));
  }
  return 200;
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    const Listen& listen, std::function<void(HttpExchange&)> handle) {
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(handle)));
  mg_callbacks callbacks{};
  callbacks.begin_request = Begin;
  callbacks.http_error = RefuseBadRequest;
  callbacks.log_message = [](const mg_connection*, const char*) { return 1; };
  callbacks.init_thread = [](const mg_context*, int) -> void* {
    NameThread("http");
    return nullptr;
  };
  const std::string address = absl::StrCat(listen.host, ":", listen.port);
  const std::string threads = absl::StrCat(kConnections), queue = absl::StrCat(kWaitingConnections);
  const std::string stall = absl::StrCat(kStallMilliseconds);
  const char* options[] = {"listening_ports",    address.c_str(),    "num_threads",
                           threads.c_str(),      "connection_queue", queue.c_str(),
                           "request_timeout_ms", stall.c_str(),      nullptr};
  server->context_ = mg_start(&callbacks, server.get(), options);
  mg_server_port port{};
  if (server->context_ == nullptr || mg_get_server_ports(server->context_, 1, &port) != 1) {
    return absl::UnavailableError(
        absl::StrCat("listen: ", address,
                     " cannot be listened on (port in use?); `ss -ltnp` shows "
                     "which process has it, --listen chooses another"));
  }
  server->port_ = port.port;
  return server;
}

HttpServer::~HttpServer() {
  if (context_ != nullptr) mg_stop(context_);
}

}  // namespace nsa::train::serve
