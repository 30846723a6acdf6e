#include "server/watch/metrics_http.h"

#include <arpa/inet.h>

#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/host_name.h"
#include "common/base/listen.h"
#include "common/base/status.h"
#include "common/job/data/url.h"
#include "server/watch/http_front.h"
#include "server/watch/http_threads.h"

namespace nsa::server {
namespace {

// http_front.h passes as many requests on at a time. Streams of pages occupy a thread each;
// server/web/stream.h says how many.
constexpr int kThreads = 96;
constexpr int kWaiting = 64;

constexpr size_t kLongestShownHost = 64;

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

// Refuses requests to a name that is not ours. A page of another site, open in a browser of this
// machine, can let its own name point to this address and so read what we answer; but its
// requests still carry that name (DNS rebinding).
class HostCheck {
 public:
  HostCheck(absl::string_view address, const std::string& page_url)
      : own_(HostOf(address)),
        page_(ParseUrl(page_url).value_or(Url()).host),
        machine_(HostName()) {}

  // What a request with this Host header gets; empty when it may go on.
  std::string Refusal(absl::string_view header) const {
    if (IsOurs(HostOf(header))) return "";
    const std::string shown = absl::CHexEscape(std::string(header.substr(0, kLongestShownHost)));
    return absl::StrCat("Host: '", shown, "' is not a name of this coordinator (an IP address, ",
                        "localhost, ", machine_, " or the host of page_url); use one of these, or ",
                        "set page_url in coordinator.yaml\n");
  }

 private:
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

constexpr char kPlain[] = "text/plain; charset=utf-8";
constexpr char kPrometheus[] = "text/plain; version=0.0.4; charset=utf-8";

// A browser asks its user for a password, and Prometheus has the token.
std::string Unauthorized(bool bodiless) {
  constexpr char kText[] = "a viewer's or operator's token is needed, also as a password\n";
  return HeadOfReply(401, kPlain, sizeof kText - 1, {{"WWW-Authenticate", "Basic realm=\"nsa\""}}) +
         (bodiless ? "" : kText);
}

std::string ReplyText(int status, const char* type, const std::string& body, bool bodiless) {
  return HeadOfReply(status, type, std::ssize(body)) + (bodiless ? "" : body);
}

}  // namespace

struct MetricsHttp::Impl {
  HostCheck host;
  Options options;
  HttpThreads pages;
  // Destroyed first: it passes requests on to all that.
  std::unique_ptr<HttpFront> front = nullptr;

  // The whole reply to /healthz, and to every request that may not read or is under a name that is
  // not ours; else empty.
  std::string Quick(std::string_view head) const;
};

std::string MetricsHttp::Impl::Quick(std::string_view head) const {
  const bool bodiless = head.starts_with("HEAD ");
  const bool health = AsksFor(head, "/healthz");
  if (!health && options.may_read && !options.may_read(HeaderOf(head, "authorization"))) {
    return Unauthorized(bodiless);
  }
  // A request without the header does not come from a browser.
  const std::string_view name = HeaderOf(head, "host");
  const std::string refusal =
      name.data() == nullptr ? "" : host.Refusal(absl::string_view(name.data(), name.size()));
  if (!refusal.empty()) return ReplyText(421, kPlain, refusal, bodiless);
  if (!health) return "";
  const std::string why = options.problem();
  return why.empty() ? ReplyText(200, kPlain, "ok\n", bodiless)
                     : ReplyText(503, kPlain, why + "\n", bodiless);
}

absl::StatusOr<std::unique_ptr<MetricsHttp>> MetricsHttp::Start(Options options,
                                                                const Clock& clock) {
  const std::string address = options.address;
  std::optional<TlsServer> tls;
  if (options.tls.has_value()) {
    NSA_ASSIGN_OR_RETURN(tls, TlsServer::MakeForHttp(*options.tls));
  }
  NSA_ASSIGN_OR_RETURN(std::vector<Fd> listeners, ListenOnAll("metrics_address", address));
  const int port = PortOf(listeners.front().get());
  HttpHandler pages = std::move(options.pages);
  if (pages == nullptr) {
    pages = [](const HttpRequest&) {
      return HttpReply{.status = 404, .type = kPlain, .body = "not found\n"};
    };
  }
  HostCheck host(address, options.page_url);
  std::unique_ptr<Impl> impl;
  try {
    impl.reset(new Impl{.host = std::move(host),
                        .options = std::move(options),
                        .pages = {kThreads, kWaiting, std::move(pages)}});
    Impl& made = *impl;
    impl->front = std::make_unique<HttpFront>(
        HttpFront::Options{.listeners = std::move(listeners),
                           .tls = std::move(tls),
                           .server =
                               [&made](Fd to, std::string request) {
                                 return made.pages.Serve(std::move(to), std::move(request));
                               },
                           .quick = [&made](std::string_view head) { return made.Quick(head); },
                           .slow =
                               [&made](std::string_view head) {
                                 return ReplyText(200, kPrometheus, made.options.text(),
                                                  head.starts_with("HEAD "));
                               },
                           .limits = HttpFrontLimits::OfThisProcess()},
        clock);
  } catch (const std::system_error& error) {
    return absl::UnavailableError(absl::StrCat("metrics_address: no threads for ", address, " (",
                                               error.what(), "); raise their limit (ulimit -u)"));
  }
  const std::string bound = absl::StrCat(address.substr(0, address.rfind(':') + 1), port);
  return std::unique_ptr<MetricsHttp>(new MetricsHttp(std::move(impl), bound));
}

MetricsHttp::MetricsHttp(std::unique_ptr<Impl> impl, std::string address)
    : impl_(std::move(impl)), address_(std::move(address)) {}

MetricsHttp::~MetricsHttp() = default;

}  // namespace nsa::server
