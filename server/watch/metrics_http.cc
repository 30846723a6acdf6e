#include "server/watch/metrics_http.h"

#include <CivetServer.h>
#include <arpa/inet.h>
#include <unistd.h>

#include <climits>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace nsa::server {
namespace {

// A connection that sends half a request occupies a thread until the deadline. Connections that
// find no thread wait in a queue, and those that do not fit into it wait in the kernel.
constexpr char kThreads[] = "64";
constexpr char kQueue[] = "64";
// civetweb waits once more for this long after a part of the header that arrives just in time, so
// a whole header has at most twice as long.
constexpr char kRequestMilliseconds[] = "2500";

constexpr size_t kLongestShownHost = 64;

std::string MachineName() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

// The host of HOST or HOST:PORT, without the brackets of an IPv6 address.
absl::string_view HostOf(absl::string_view address) {
  if (absl::StartsWith(address, "[")) return address.substr(1, address.find(']') - 1);
  return address.substr(0, address.find(':'));
}

bool IsIpAddress(absl::string_view host) {
  const std::string text(host);
  in6_addr parsed{};
  return inet_pton(AF_INET, text.c_str(), &parsed) == 1 ||
         inet_pton(AF_INET6, text.c_str(), &parsed) == 1;
}

void Reply(mg_connection* connection, const char* status, absl::string_view type,
           absl::string_view body) {
  mg_printf(connection,
            "HTTP/1.1 %s\r\nContent-Type: %.*s\r\nContent-Length: %zu\r\n"
            "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
            status, static_cast<int>(type.size()), type.data(), body.size());
  mg_write(connection, body.data(), body.size());
}

// Refuses requests to a name that is not ours. A page of another site, open in a browser of this
// machine, can let its own name point to this address and so read what we answer; but its
// requests still carry that name (DNS rebinding).
class HostCheck {
 public:
  explicit HostCheck(absl::string_view address) : own_(HostOf(address)), machine_(MachineName()) {}

  // 0 when the request may go on; else the HTTP status of the reply that was sent.
  static int Begin(mg_connection* connection) {
    const auto* server =
        static_cast<const CivetServer*>(mg_get_user_data(mg_get_context(connection)));
    return static_cast<const HostCheck*>(server->getUserContext())->Check(connection);
  }

 private:
  int Check(mg_connection* connection) const {
    // A request without the header does not come from a browser.
    const char* header = mg_get_header(connection, "Host");
    if (header == nullptr || IsOurs(HostOf(header))) return 0;
    const std::string shown =
        absl::CHexEscape(std::string(header, strnlen(header, kLongestShownHost)));
    Reply(connection, "421 Misdirected Request", "text/plain; charset=utf-8",
          absl::StrCat("Host: '", shown, "' is not a name of this coordinator (an IP address, ",
                       "localhost or ", machine_, "); use one of these\n"));
    return 421;
  }

  bool IsOurs(absl::string_view host) const {
    if (IsIpAddress(host)) return true;
    for (const absl::string_view name :
         {absl::string_view("localhost"), absl::string_view(own_), absl::string_view(machine_)}) {
      if (!name.empty() && absl::EqualsIgnoreCase(host, name)) return true;
    }
    return false;
  }

  const std::string own_;
  const std::string machine_;
};

class Page final : public CivetHandler {
 public:
  using Answer = std::function<std::pair<int, std::string>()>;
  Page(std::string type, Answer answer) : type_(std::move(type)), answer_(std::move(answer)) {}

  bool handleGet(CivetServer*, mg_connection* connection) override {
    const auto [code, body] = answer_();
    Reply(connection, code == 200 ? "200 OK" : "503 Service Unavailable", type_, body);
    return true;
  }

 private:
  const std::string type_;
  const Answer answer_;
};

}  // namespace

struct MetricsHttp::Impl {
  HostCheck host;
  Page metrics;
  Page health;
  // Declared last, so that it is destroyed first: its threads use the pages.
  std::unique_ptr<CivetServer> server;
};

absl::StatusOr<std::unique_ptr<MetricsHttp>> MetricsHttp::Start(const std::string& address,
                                                                std::function<std::string()> text,
                                                                std::function<bool()> healthy) {
  auto impl = std::unique_ptr<Impl>(new Impl{
      .host = HostCheck(address),
      .metrics = Page("text/plain; version=0.0.4; charset=utf-8",
                      [text = std::move(text)] { return std::make_pair(200, text()); }),
      .health = Page("text/plain; charset=utf-8",
                     [healthy = std::move(healthy)] {
                       return healthy() ? std::make_pair(200, std::string("ok\n"))
                                        : std::make_pair(503, std::string("not serving\n"));
                     }),
      .server = nullptr});
  CivetCallbacks callbacks;
  callbacks.begin_request = HostCheck::Begin;
  try {
    impl->server = std::make_unique<CivetServer>(
        std::vector<std::string>{"listening_ports", address, "num_threads", kThreads,
                                 "connection_queue", kQueue, "request_timeout_ms",
                                 kRequestMilliseconds},
        &callbacks, &impl->host);
  } catch (const CivetException&) {
    return absl::UnavailableError(absl::StrFormat(
        "metrics_address: %s cannot be listened on (port in use, or not an address of this "
        "machine); `ss -ltnp` shows who has it, --metrics chooses another",
        address));
  }
  impl->server->addHandler("/metrics$", impl->metrics);
  impl->server->addHandler("/healthz$", impl->health);
  const std::vector<int> ports = impl->server->getListeningPorts();
  const std::string bound =
      absl::StrCat(address.substr(0, address.rfind(':') + 1), ports.empty() ? 0 : ports.front());
  return std::unique_ptr<MetricsHttp>(new MetricsHttp(std::move(impl), bound));
}

MetricsHttp::MetricsHttp(std::unique_ptr<Impl> impl, std::string address)
    : impl_(std::move(impl)), address_(std::move(address)) {}

MetricsHttp::~MetricsHttp() { impl_->server->close(); }

}  // namespace nsa::server
