#include "server/rpc/https_door.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/listen.h"
#include "common/base/status.h"
#include "common/base/thread_name.h"
#include "server/rpc/gate/tls.h"
#include "server/watch/http_front.h"

namespace nsa::server {
namespace {

// From the connection to the end of its request, TLS included.
constexpr absl::Duration kRequestTime = absl::Seconds(10);
// How long a client may take nothing of its reply.
constexpr absl::Duration kReplyTime = absl::Seconds(10);
constexpr size_t kMostReply = 64 << 10;  // on its way
constexpr int kPollMilliseconds = 250;

constexpr char kUnauthorized[] =
    "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"nsa\"\r\nContent-Type: "
    "text/plain\r\nContent-Length: 61\r\nConnection: close\r\n\r\n"
    "a viewer's or operator's token is needed, also as a password\n";

Fd ConnectToLoopback(int port) {
  Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool begun =
      fd.valid() && (connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0 ||
                     errno == EINPROGRESS);
  return begun ? std::move(fd) : Fd();
}

bool IsPassing(ssize_t result) { return result >= 0 || errno == EAGAIN || errno == EINTR; }

}  // namespace

class HttpsDoor::Impl {
 public:
  Impl(Options options, TlsServer tls, std::vector<Fd> listeners, int server_port,
       std::string address)
      : options_(std::move(options)),
        tls_(std::move(tls)),
        listeners_(std::move(listeners)),
        server_port_(server_port),
        address_(std::move(address)),
        wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        thread_([this] { Loop(); }) {}

  ~Impl() {
    stopping_ = true;
    eventfd_write(wake_.get(), 1);
    thread_.join();
  }

  const std::string& address() const { return address_; }

 private:
  struct Visit {
    Fd client;
    std::unique_ptr<TlsSession> tls;
    Fd server;
    absl::Duration since;      // accepted, then: when the client last took something
    bool writes_next = false;  // the handshake has to write
    bool whole = false;        // the request is
    bool last = false;         // nothing is added to the reply
    std::string request;       // what the server has not taken yet
    std::string reply;         // what the client has not taken yet
  };
  using Visits = std::map<uint64_t, Visit>;  // the oldest first

  void Loop();
  void Accept(int listener);
  // False when it is over.
  bool Serve(Visit* visit, short server);
  bool Receive(Visit* visit);
  bool Decide(Visit* visit);
  bool Relay(Visit* visit, short server);
  bool Send(Visit* visit);
  static pollfd ClientOf(const Visit& visit);
  static pollfd ServerOf(const Visit& visit);

  const Options options_;
  const TlsServer tls_;
  const std::vector<Fd> listeners_;
  const int server_port_;
  const std::string address_;
  const Fd wake_;
  std::atomic<bool> stopping_ = false;

  // Used by the thread only.
  Visits visits_;
  uint64_t next_ = 1;
  absl::Duration now_;

  std::thread thread_;
};

pollfd HttpsDoor::Impl::ClientOf(const Visit& visit) {
  const bool writes = visit.writes_next || !visit.reply.empty();
  return {.fd = visit.client.get(),
          .events = static_cast<short>((visit.whole ? POLLRDHUP : POLLIN) | (writes ? POLLOUT : 0)),
          .revents = 0};
}

pollfd HttpsDoor::Impl::ServerOf(const Visit& visit) {
  const int events =
      (visit.reply.size() < kMostReply ? POLLIN : 0) | (visit.request.empty() ? 0 : POLLOUT);
  return {.fd = visit.server.valid() && events != 0 ? visit.server.get() : -1,
          .events = static_cast<short>(events),
          .revents = 0};
}

void HttpsDoor::Impl::Loop() {
  NameThread("https-door");
  std::vector<pollfd> polled;
  std::vector<uint64_t> ids;
  while (!stopping_) {
    polled.assign(1, {.fd = wake_.get(), .events = POLLIN, .revents = 0});
    for (const Fd& fd : listeners_) {
      polled.push_back({.fd = fd.get(), .events = POLLIN, .revents = 0});
    }
    const size_t first = polled.size();
    ids.clear();
    for (const auto& [id, visit] : visits_) {
      ids.push_back(id);
      polled.push_back(ClientOf(visit));
      polled.push_back(ServerOf(visit));
    }
    poll(polled.data(), polled.size(), kPollMilliseconds);
    now_ = RealClock().Monotonic();
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto at = visits_.find(ids[i]);
      const short client = polled[first + 2 * i].revents;
      const bool gone = (client & (POLLERR | POLLHUP | POLLRDHUP)) != 0;
      if (gone || !Serve(&at->second, polled[first + 2 * i + 1].revents)) visits_.erase(at);
    }
    for (size_t i = 0; i < listeners_.size(); ++i) {
      if (polled[1 + i].revents != 0) Accept(listeners_[i].get());
    }
  }
}

void HttpsDoor::Impl::Accept(int listener) {
  for (int i = 0; i < 32; ++i) {
    Fd client(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!client.valid()) return;
    if (std::ssize(visits_) >= kMostConnections) {
      const auto oldest =
          std::ranges::find_if(visits_, [](const auto& each) { return !each.second.whole; });
      if (oldest == visits_.end()) continue;
      visits_.erase(oldest);
    }
    Visit& visit = visits_[next_++];
    visit.tls = tls_.Accept(client.get());
    visit.client = std::move(client);
    visit.since = now_;
  }
}

bool HttpsDoor::Impl::Serve(Visit* visit, short server) {
  if (!visit->whole) {
    if (now_ - visit->since > kRequestTime) return false;
    if (!Receive(visit)) return false;
    if (!visit->whole) return true;
  }
  if (visit->server.valid() && !Relay(visit, server)) return false;
  if (!Send(visit)) return false;
  if (!visit->reply.empty()) return now_ - visit->since < kReplyTime;
  if (visit->last) visit->tls->Close();
  return !visit->last;
}

bool HttpsDoor::Impl::Receive(Visit* visit) {
  if (!visit->tls->ready()) {
    const TlsResult shaken = visit->tls->Handshake();
    visit->writes_next = shaken == TlsResult::kWantsWrite;
    if (shaken == TlsResult::kWantsRead || shaken == TlsResult::kWantsWrite) return true;
    if (shaken != TlsResult::kDone) return false;
  }
  // To the end: what OpenSSL has read already does not wake poll().
  while (!visit->whole) {
    char piece[4 << 10];
    size_t got = 0;
    const TlsResult read = visit->tls->Read(piece, sizeof piece, &got);
    if (read == TlsResult::kWantsRead || read == TlsResult::kWantsWrite) return true;
    if (read != TlsResult::kDone) return false;
    visit->request.append(piece, got);
    // It refuses what is too large, so that this ends.
    const size_t size = WholeRequest(visit->request, &visit->reply);
    if (size == 0 && visit->reply.empty()) continue;
    visit->whole = true;
    visit->since = now_;
    visit->request.resize(size);
    visit->last = !visit->reply.empty();
    if (!visit->last) return Decide(visit);
  }
  return true;
}

// A whole request goes to the server, or is refused.
bool HttpsDoor::Impl::Decide(Visit* visit) {
  if (!AsksFor(visit->request, "/healthz") &&
      !options_.may_read(HeaderOf(visit->request, "authorization"))) {
    visit->request.clear();
    visit->reply = kUnauthorized;
    visit->last = true;
    return true;
  }
  visit->server = ConnectToLoopback(server_port_);
  return visit->server.valid();
}

bool HttpsDoor::Impl::Relay(Visit* visit, short server) {
  if (!visit->request.empty() && (server & POLLOUT) != 0) {
    const ssize_t sent =
        send(visit->server.get(), visit->request.data(), visit->request.size(), MSG_NOSIGNAL);
    if (!IsPassing(sent)) return false;
    if (sent > 0) visit->request.erase(0, static_cast<size_t>(sent));
  }
  if ((server & (POLLIN | POLLHUP | POLLERR)) == 0) return true;
  const size_t before = visit->reply.size();
  if (before >= kMostReply) return true;
  visit->reply.resize(kMostReply);
  const ssize_t got =
      recv(visit->server.get(), visit->reply.data() + before, kMostReply - before, 0);
  visit->reply.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
  if (before == 0) visit->since = now_;
  if (got == 0 || !IsPassing(got)) {
    visit->server.Reset();
    visit->last = true;
  }
  return true;
}

bool HttpsDoor::Impl::Send(Visit* visit) {
  while (!visit->reply.empty()) {
    size_t put = 0;
    const TlsResult wrote = visit->tls->Write(visit->reply.data(), visit->reply.size(), &put);
    if (wrote == TlsResult::kWantsRead || wrote == TlsResult::kWantsWrite) return true;
    if (wrote != TlsResult::kDone) return false;
    visit->reply.erase(0, put);
    visit->since = now_;
  }
  return true;
}

absl::StatusOr<std::unique_ptr<HttpsDoor>> HttpsDoor::Open(Options options) {
  NSA_ASSIGN_OR_RETURN(TlsServer tls, TlsServer::MakeForHttp(options.tls));
  NSA_ASSIGN_OR_RETURN(std::vector<Fd> listeners, ListenOnAll("metrics_address", options.address));
  const std::string host = options.address.substr(0, options.address.rfind(':') + 1);
  const std::string address = absl::StrCat(host, PortOf(listeners.front().get()));
  int port = 0;
  if (!absl::SimpleAtoi(options.server.substr(options.server.rfind(':') + 1), &port)) {
    return absl::InternalError(absl::StrCat("no port: ", options.server));
  }
  return std::unique_ptr<HttpsDoor>(new HttpsDoor(std::make_unique<Impl>(
      std::move(options), std::move(tls), std::move(listeners), port, address)));
}

HttpsDoor::HttpsDoor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpsDoor::~HttpsDoor() = default;

const std::string& HttpsDoor::address() const { return impl_->address(); }

}  // namespace nsa::server
