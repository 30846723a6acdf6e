#include "server/watch/metrics_http.h"

#include <CivetServer.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace nsa::server {
namespace {

class Page final : public CivetHandler {
 public:
  using Answer = std::function<std::pair<int, std::string>()>;
  Page(std::string type, Answer answer) : type_(std::move(type)), answer_(std::move(answer)) {}

  bool handleGet(CivetServer*, mg_connection* connection) override {
    const auto [code, body] = answer_();
    mg_printf(connection,
              "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
              "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
              code, code == 200 ? "OK" : "Service Unavailable", type_.c_str(), body.size());
    mg_write(connection, body.data(), body.size());
    return true;
  }

 private:
  const std::string type_;
  const Answer answer_;
};

}  // namespace

struct MetricsHttp::Impl {
  Page metrics;
  Page health;
  // Declared last, so that it is destroyed first: its threads use the pages.
  std::unique_ptr<CivetServer> server;
};

absl::StatusOr<std::unique_ptr<MetricsHttp>> MetricsHttp::Start(const std::string& address,
                                                                std::function<std::string()> text,
                                                                std::function<bool()> healthy) {
  auto impl = std::unique_ptr<Impl>(new Impl{
      .metrics = Page("text/plain; version=0.0.4; charset=utf-8",
                      [text = std::move(text)] { return std::make_pair(200, text()); }),
      .health = Page("text/plain; charset=utf-8",
                     [healthy = std::move(healthy)] {
                       return healthy() ? std::make_pair(200, std::string("ok\n"))
                                        : std::make_pair(503, std::string("not serving\n"));
                     }),
      .server = nullptr});
  try {
    impl->server = std::make_unique<CivetServer>(std::vector<std::string>{
        "listening_ports", address, "num_threads", "2", "request_timeout_ms", "5000"});
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
