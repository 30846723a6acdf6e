#include "server/watch/metrics_http.h"

#include <CivetServer.h>
#include <arpa/inet.h>

#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/host_name.h"
#include "common/base/listen.h"
#include "common/base/status.h"
#include "common/job/data/url.h"
#include "server/watch/http_front.h"

namespace nsa::server {
namespace {

// http_front.h passes whole requests on, and as many at a time as there are threads and places in
// the queue. Streams of pages occupy a thread each; server/web/stream.h says how many.
constexpr char kThreads[] = "96";
constexpr char kQueue[] = "64";
// civetweb waits once more for this long after a part of the header that arrives just in time, so
// a whole header has at most twice as long.
constexpr char kRequestMilliseconds[] = "2500";

constexpr size_t kLongestShownHost = 64;
constexpr int64_t kLargestBody = 16 << 10;
constexpr size_t kLargestCopy = 16 << 10;

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
  HostCheck(absl::string_view address, const std::string& page_url)
      : own_(HostOf(address)),
        page_(ParseUrl(page_url).value_or(Url()).host),
        machine_(HostName()) {}

  // 0 when the request may go on; else the HTTP status of the reply that was sent.
  static int Begin(mg_connection* connection) {
    const auto* server =
        static_cast<const CivetServer*>(mg_get_user_data(mg_get_context(connection)));
    return static_cast<const HostCheck*>(server->getUserContext())->Check(connection);
  }

  static constexpr char kMisdirected[] = "421 Misdirected Request";

  // What a request with this Host header gets; empty when it may go on.
  std::string Refusal(absl::string_view header) const {
    if (IsOurs(HostOf(header))) return "";
    const std::string shown = absl::CHexEscape(std::string(header.substr(0, kLongestShownHost)));
    return absl::StrCat("Host: '", shown, "' is not a name of this coordinator (an IP address, ",
                        "localhost, ", machine_, " or the host of page_url); use one of these, or ",
                        "set page_url in coordinator.yaml\n");
  }

 private:
  int Check(mg_connection* connection) const {
    // A request without the header does not come from a browser.
    const char* header = mg_get_header(connection, "Host");
    const std::string refusal = header == nullptr ? "" : Refusal(header);
    if (refusal.empty()) return 0;
    Reply(connection, kMisdirected, "text/plain; charset=utf-8", refusal);
    return 421;
  }

  bool IsOurs(absl::string_view host) const {
    if (IsIpAddress(host)) return true;
    for (const absl::string_view name : {absl::string_view("localhost"), absl::string_view(own_),
                                         absl::string_view(page_), absl::string_view(machine_)}) {
      if (!name.empty() && absl::EqualsIgnoreCase(host, name)) return true;
    }
    return false;
  }

  const std::string own_;
  const std::string page_;
  const std::string machine_;
};

std::map<std::string, std::string> ParseQuery(const char* text) {
  std::map<std::string, std::string> query;
  for (const absl::string_view pair :
       absl::StrSplit(text == nullptr ? "" : text, '&', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(pair, absl::MaxSplits('=', 1));
    std::string decoded[2];
    for (int i = 0; i < 2; ++i) {
      const absl::string_view raw = i == 0 ? parts.first : parts.second;
      CivetServer::urlDecode(raw.data(), raw.size(), decoded[i]);
    }
    query[decoded[0]] = decoded[1];
  }
  return query;
}

HttpRequest RequestOf(const mg_request_info& info) {
  HttpRequest request{
      .method = info.request_method,
      .path = info.local_uri == nullptr ? "" : info.local_uri,
      .query = ParseQuery(info.query_string),
      .headers = {},
      .body = {},
  };
  for (int i = 0; i < info.num_headers; ++i) {
    request.headers[absl::AsciiStrToLower(info.http_headers[i].name)] = info.http_headers[i].value;
  }
  return request;
}

// False when the body is larger than kLargestBody or did not arrive.
bool ReadBody(mg_connection* connection, int64_t length, std::string* body) {
  if (length <= 0) return true;
  if (length > kLargestBody) return false;
  body->resize(static_cast<size_t>(length));
  size_t done = 0;
  while (done < body->size()) {
    const int got = mg_read(connection, body->data() + done, body->size() - done);
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}

void Send(mg_connection* connection, const HttpReply& reply, bool head) {
  std::string text = absl::StrCat(
      "HTTP/1.1 ", reply.status, " ", mg_get_response_code_text(connection, reply.status),
      "\r\nContent-Type: ", reply.type, "\r\nX-Content-Type-Options: nosniff\r\n");
  for (const auto& [name, value] : reply.headers) absl::StrAppend(&text, name, ": ", value, "\r\n");
  if (reply.more == nullptr) absl::StrAppend(&text, "Content-Length: ", reply.body.size(), "\r\n");
  absl::StrAppend(&text, "Connection: close\r\n\r\n");
  // A small body goes with the header in one packet; a large one is not copied.
  const bool apart = reply.body.size() > kLargestCopy;
  if (!head && !apart) text += reply.body;
  if (mg_write(connection, text.data(), text.size()) <= 0 || head) return;
  if (apart && mg_write(connection, reply.body.data(), reply.body.size()) <= 0) return;
  if (reply.more == nullptr) return;
  while (const std::optional<std::string> chunk = reply.more()) {
    if (mg_write(connection, chunk->data(), chunk->size()) <= 0) return;
  }
}

// Whatever HttpFront does not answer itself.
class Pages final : public CivetHandler {
 public:
  explicit Pages(HttpHandler pages) : pages_(std::move(pages)) {}

  bool handleGet(CivetServer* /*server*/, mg_connection* connection) override {
    return Answer(connection, false);
  }
  bool handleHead(CivetServer* /*server*/, mg_connection* connection) override {
    return Answer(connection, true);
  }
  bool handlePost(CivetServer* /*server*/, mg_connection* connection) override {
    return Answer(connection, false);
  }

 private:
  static constexpr char kText[] = "text/plain; charset=utf-8";

  bool Answer(mg_connection* connection, bool head) const {
    const mg_request_info& info = *mg_get_request_info(connection);
    HttpRequest request = RequestOf(info);
    if (!ReadBody(connection, info.content_length, &request.body)) {
      Send(connection, {.status = 413, .type = kText, .body = "body: too large or cut off\n"},
           head);
      return true;
    }
    Send(connection, ReplyTo(request), head);
    return true;
  }

  HttpReply ReplyTo(const HttpRequest& request) const {
    if (pages_ != nullptr) return pages_(request);
    return {.status = 404, .type = kText, .body = "not found\n"};
  }

  const HttpHandler pages_;
};

}  // namespace

struct MetricsHttp::Impl {
  HostCheck host;
  Pages pages;
  std::function<std::string()> metrics;
  std::function<std::string()> problem;
  // Declared last, so that they are destroyed first: their threads use all that.
  std::unique_ptr<CivetServer> server = nullptr;
  std::unique_ptr<HttpFront> front = nullptr;

  // The whole reply to /healthz, and to both paths under a name that is not ours; else empty.
  std::string Quick(std::string_view head) const;
};

namespace {

std::string ReplyText(const char* status, const char* type, const std::string& body, bool head) {
  return absl::StrCat("HTTP/1.1 ", status, "\r\nContent-Type: ", type,
                      "\r\nX-Content-Type-Options: nosniff\r\nContent-Length: ", body.size(),
                      "\r\nConnection: close\r\n\r\n", head ? "" : body);
}

constexpr char kPlain[] = "text/plain; charset=utf-8";
constexpr char kPrometheus[] = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace

std::string MetricsHttp::Impl::Quick(std::string_view head) const {
  const bool health = AsksFor(head, "/healthz");
  if (!health && !AsksFor(head, "/metrics")) return "";
  const bool bodiless = head.starts_with("HEAD ");
  const std::string_view name = HeaderOf(head, "host");
  const std::string refusal =
      name.data() == nullptr ? "" : host.Refusal(absl::string_view(name.data(), name.size()));
  if (!refusal.empty()) {
    return ReplyText(HostCheck::kMisdirected, kPlain, refusal, bodiless);
  }
  if (!health) return "";
  const std::string why = problem();
  return why.empty() ? ReplyText("200 OK", kPlain, "ok\n", bodiless)
                     : ReplyText("503 Service Unavailable", kPlain, why + "\n", bodiless);
}

absl::StatusOr<std::unique_ptr<MetricsHttp>> MetricsHttp::Start(
    const std::string& address, std::function<std::string()> text,
    std::function<std::string()> problem, HttpHandler pages, const std::string& page_url) {
  NSA_ASSIGN_OR_RETURN(std::vector<Fd> listeners, ListenOnAll("metrics_address", address));
  const int port = PortOf(listeners.front().get());
  auto impl = std::unique_ptr<Impl>(new Impl{.host = HostCheck(address, page_url),
                                             .pages = Pages(std::move(pages)),
                                             .metrics = std::move(text),
                                             .problem = std::move(problem)});
  CivetCallbacks callbacks;
  callbacks.begin_request = HostCheck::Begin;
  try {
    impl->server = std::make_unique<CivetServer>(
        std::vector<std::string>{"listening_ports", "127.0.0.1:0", "num_threads", kThreads,
                                 "connection_queue", kQueue, "request_timeout_ms",
                                 kRequestMilliseconds},
        &callbacks, &impl->host);
  } catch (const CivetException&) {
    return absl::UnavailableError(absl::StrCat(
        "metrics_address: the HTTP server behind ", address,
        " does not start; check the limits of threads and file descriptors (ulimit -a)"));
  }
  impl->server->addHandler("/", impl->pages);
  const Impl& made = *impl;
  impl->front = std::make_unique<HttpFront>(
      std::move(listeners), impl->server->getListeningPorts().front(),
      [&made](std::string_view head) { return made.Quick(head); },
      [&made](std::string_view head) {
        return ReplyText("200 OK", kPrometheus, made.metrics(), head.starts_with("HEAD "));
      },
      HttpFrontLimits::OfThisProcess());
  const std::string bound = absl::StrCat(address.substr(0, address.rfind(':') + 1), port);
  return std::unique_ptr<MetricsHttp>(new MetricsHttp(std::move(impl), bound));
}

MetricsHttp::MetricsHttp(std::unique_ptr<Impl> impl, std::string address)
    : impl_(std::move(impl)), address_(std::move(address)) {}

MetricsHttp::~MetricsHttp() {
  impl_->front.reset();
  impl_->server->close();
}

}  // namespace nsa::server
