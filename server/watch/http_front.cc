#include "server/watch/http_front.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/thread_name.h"
#include "common/rpc/block_sigpipe.h"
#include "server/watch/connection_source.h"

namespace nsa::server {
namespace {

constexpr size_t kMostHead = 16 << 10;
constexpr size_t kMostBody = 16 << 10;
constexpr size_t kPiece = 64 << 10;
constexpr absl::Duration kRequestPatience = absl::Seconds(5);
// From elsewhere, with TLS before it.
constexpr absl::Duration kTlsRequestPatience = absl::Seconds(10);
constexpr int kTickMilliseconds = 100;
constexpr absl::Duration kForgetEvery = absl::Seconds(15);
constexpr size_t kSlowWaiting = 64;
// Slow answers that clients have not taken yet; the oldest makes room for a new one.
constexpr int kSlowHeld = 16;
// How long a client may take nothing of the rest of its reply.
constexpr absl::Duration kReplyPatience = absl::Seconds(5);
// How long what a client still sends is read after a refusal: a reset could cost it the reply.
constexpr absl::Duration kLinger = absl::Seconds(1);

std::string Refuse(const char* status) {
  return absl::StrCat("HTTP/1.1 ", status, "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
}

bool MayGoOn(ssize_t result) { return result >= 0 || errno == EAGAIN || errno == EINTR; }

}  // namespace

size_t EndOfHead(std::string_view bytes) {
  const size_t crlf = bytes.find("\r\n\r\n");
  const size_t lf = bytes.find("\n\n");
  const size_t ends[] = {crlf == bytes.npos ? crlf : crlf + 4, lf == bytes.npos ? lf : lf + 2};
  const size_t end = std::min(ends[0], ends[1]);
  return end == bytes.npos ? 0 : end;
}

bool AsksFor(std::string_view head, std::string_view path) {
  for (const std::string_view method : {"GET ", "HEAD "}) {
    if (!head.starts_with(method)) continue;
    head.remove_prefix(method.size());
    if (!head.starts_with(path)) return false;
    head.remove_prefix(path.size());
    return head.starts_with(' ') || head.starts_with('?');
  }
  return false;
}

std::string_view HeaderOf(std::string_view head, std::string_view name) {
  for (size_t at = head.find('\n'); at != head.npos; at = head.find('\n', at + 1)) {
    std::string_view line = head.substr(at + 1, head.find('\n', at + 1) - at - 1);
    const size_t colon = line.find(':');
    if (colon == line.npos) continue;
    const std::string_view key = line.substr(0, colon);
    const bool same = std::ranges::equal(
        key, name, [](char a, char b) { return absl::ascii_tolower(a) == absl::ascii_tolower(b); });
    if (!same) continue;
    line.remove_prefix(colon + 1);
    while (!line.empty() && absl::ascii_isspace(line.front())) line.remove_prefix(1);
    while (!line.empty() && absl::ascii_isspace(line.back())) line.remove_suffix(1);
    return line;
  }
  return {};
}

size_t WholeRequest(std::string_view bytes, std::string* refusal) {
  const size_t head = EndOfHead(bytes);
  if (head == 0 && bytes.size() < kMostHead) return 0;
  if (head == 0 || head > kMostHead) {
    *refusal = Refuse("431 Request Header Fields Too Large");
    return 0;
  }
  if (!HeaderOf(bytes.substr(0, head), "transfer-encoding").empty()) {
    *refusal = Refuse("411 Length Required");
    return 0;
  }
  const std::string length(HeaderOf(bytes.substr(0, head), "content-length"));
  uint64_t body = 0;
  if (!length.empty() && !absl::SimpleAtoi(length, &body)) {
    *refusal = Refuse("400 Bad Request");
    return 0;
  }
  if (body > kMostBody) {
    *refusal = Refuse("413 Content Too Large");
    return 0;
  }
  return bytes.size() < head + body ? 0 : head + static_cast<size_t>(body);
}

HttpFrontLimits HttpFrontLimits::OfThisProcess() {
  rlimit descriptors{};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  HttpFrontLimits limits;
  limits.connections = static_cast<int>(std::clamp<rlim_t>(descriptors.rlim_cur / 8, 8, 512));
  limits.passed_on = static_cast<int>(std::clamp<rlim_t>(descriptors.rlim_cur / 16, 4, 160));
  return limits;
}

class HttpFront::Impl {
 public:
  Impl(Options options, const Clock& clock)
      : options_(std::move(options)),
        clock_(clock),
        patience_(options_.tls.has_value() ? kTlsRequestPatience : kRequestPatience),
        shares_(options_.limits.handshakes),
        wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        slow_thread_([this] { AnswerSlowly(); }) {
    try {
      thread_ = std::thread([this] { Loop(); });
    } catch (const std::system_error&) {
      EndSlowThread();
      throw;
    }
  }

  ~Impl() {
    stopping_ = true;
    eventfd_write(wake_.get(), 1);
    thread_.join();
    EndSlowThread();
  }

 private:
  void EndSlowThread() {
    stopping_ = true;
    {
      const MutexLock lock(&mutex_);
      changed_.SignalAll();
    }
    slow_thread_.join();
  }

  struct Connection {
    Fd client;
    std::unique_ptr<TlsSession> tls;  // null: in the clear
    std::string neighbour;            // ConnectionSource::neighbour
    bool held = false;                // its handshake waits for its share
    Fd server;
    absl::Duration accepted;
    std::string request;
    std::string reply;         // what the client has not taken yet
    bool writes_next = false;  // the handshake has to write
    bool whole = false;        // the request is
    bool passed = false;       // to the server, or will be when there is room
    bool last = false;         // nothing is added to the reply
    bool refused = false;      // the client may still be sending
    bool slow = false;         // it asks for what is answered slowly
    bool ended = false;        // the client has the whole reply, and has been notified
    absl::Duration moved;      // when the client last took something of the reply, or it began
  };
  using Connections = std::map<uint64_t, Connection>;  // the oldest first

  void Loop();
  void Accept(int listener);
  // False when the connection is over.
  bool Serve(uint64_t id, Connection* connection, short client, short server);
  // Read into or written from memory: what became of it, as TLS says it.
  static TlsResult Read(Connection* connection, char* to, size_t size, size_t* got);
  static TlsResult Write(Connection* connection, size_t* put);
  TlsResult Handshake(Connection* connection);
  bool Receive(uint64_t id, Connection* connection);
  void Decide(uint64_t id, Connection* connection);
  bool PassOn(Connection* connection);
  void Relay(Connection* connection);
  bool Send(Connection* connection);
  bool Linger(Connection* connection) const;
  void MakeRoom();
  void TakeSlowAnswers();
  void AnswerSlowly();

  const Options options_;
  const Clock& clock_;
  const absl::Duration patience_;
  HandshakeShares shares_;  // used by the thread only
  const Fd wake_;
  std::atomic<bool> stopping_ = false;

  // Used by the thread only.
  Connections connections_;
  uint64_t next_id_ = 1;
  int passed_on_ = 0;
  absl::Duration now_;
  absl::Duration forgotten_;  // when

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::pair<uint64_t, std::string>> asked_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::pair<uint64_t, std::string>> answered_ ABSL_GUARDED_BY(mutex_);

  std::thread slow_thread_;
  std::thread thread_;
};

void HttpFront::Impl::Loop() {
  NameThread("http-front");
  BlockSigpipe();
  std::vector<pollfd> polled;
  std::vector<uint64_t> ids;
  while (!stopping_) {
    polled.assign(1, {.fd = wake_.get(), .events = POLLIN, .revents = 0});
    for (const Fd& fd : options_.listeners) {
      polled.push_back({.fd = fd.get(), .events = POLLIN, .revents = 0});
    }
    const size_t first = polled.size();
    ids.clear();
    for (const auto& [id, each] : connections_) {
      ids.push_back(id);
      const bool writes = each.writes_next || !each.reply.empty();
      const short client = each.held
                               ? short{0}
                               : static_cast<short>((each.whole && !each.refused ? 0 : POLLIN) |
                                                    (writes ? POLLOUT : 0));
      const short server = each.reply.size() < kPiece ? POLLIN : 0;
      polled.push_back({.fd = each.client.get(), .events = client, .revents = 0});
      polled.push_back(
          {.fd = server == 0 ? -1 : each.server.get(), .events = server, .revents = 0});
    }
    poll(polled.data(), polled.size(), kTickMilliseconds);
    now_ = clock_.Monotonic();
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto at = connections_.find(ids[i]);
      const pollfd* const pair = &polled[first + 2 * i];
      if (!Serve(at->first, &at->second, pair[0].revents, pair[1].revents)) {
        passed_on_ -= at->second.server.valid();
        connections_.erase(at);
      }
    }
    TakeSlowAnswers();
    if (now_ - forgotten_ > kForgetEvery) {
      shares_.Forget(now_);
      forgotten_ = now_;
    }
    for (size_t i = 0; i < options_.listeners.size(); ++i) {
      if (polled[1 + i].revents != 0) Accept(options_.listeners[i].get());
    }
  }
}

void HttpFront::Impl::Accept(int listener) {
  for (int i = 0; i < 32; ++i) {
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    Fd client(
        accept4(listener, reinterpret_cast<sockaddr*>(&from), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!client.valid()) return;
    if (std::ssize(connections_) >= options_.limits.connections) {
      MakeRoom();
      if (std::ssize(connections_) >= options_.limits.connections) continue;
    }
    Connection& connection = connections_[next_id_++];
    if (options_.tls.has_value()) connection.tls = options_.tls->Accept(client.get());
    connection.client = std::move(client);
    connection.neighbour = SourceOf(from).neighbour;
    connection.accepted = now_;
  }
}

// Ends the oldest connection without a whole request; if there is none, one that waits for the
// server; if there is none either, one that has its whole reply before it.
void HttpFront::Impl::MakeRoom() {
  const auto incomplete = [](const auto& each) { return !each.second.whole; };
  const auto waiting = [](const auto& each) {
    return each.second.passed && !each.second.server.valid() && !each.second.last;
  };
  const auto sending = [](const auto& each) { return each.second.last; };
  auto victim = std::ranges::find_if(connections_, incomplete);
  if (victim == connections_.end()) victim = std::ranges::find_if(connections_, waiting);
  if (victim == connections_.end()) victim = std::ranges::find_if(connections_, sending);
  if (victim != connections_.end()) connections_.erase(victim);
}

bool HttpFront::Impl::Serve(uint64_t id, Connection* connection, short client, short server) {
  if ((client & (POLLERR | POLLHUP)) != 0) return false;
  if (!connection->whole) {
    if (now_ - connection->accepted > patience_) return false;
    if ((client != 0 || connection->held) && !Receive(id, connection)) return false;
  }
  if (connection->passed && !connection->server.valid() && !connection->last) {
    if (passed_on_ >= options_.limits.passed_on) return true;
    if (!PassOn(connection)) return false;
  }
  if (server != 0) Relay(connection);
  if (!Send(connection)) return false;
  if (!connection->last) return true;
  if (!connection->reply.empty()) return now_ - connection->moved < kReplyPatience;
  if (!std::exchange(connection->ended, true)) {
    if (connection->tls != nullptr) connection->tls->Close();
    shutdown(connection->client.get(), SHUT_WR);
  }
  return connection->refused && Linger(connection);
}

// False when the client has ended or had its time.
bool HttpFront::Impl::Linger(Connection* connection) const {
  char piece[16 << 10];
  ssize_t got = 0;
  for (int i = 0; i < 16; ++i) {
    got = recv(connection->client.get(), piece, sizeof piece, 0);
    if (got <= 0) break;
  }
  return got != 0 && MayGoOn(got) && now_ - connection->moved < kLinger;
}

TlsResult HttpFront::Impl::Read(Connection* connection, char* to, size_t size, size_t* got) {
  if (connection->tls != nullptr) return connection->tls->Read(to, size, got);
  const ssize_t read = recv(connection->client.get(), to, size, 0);
  if (read == 0) return TlsResult::kEnded;
  if (read < 0) return MayGoOn(read) ? TlsResult::kWantsRead : TlsResult::kBroken;
  *got = static_cast<size_t>(read);
  return TlsResult::kDone;
}

TlsResult HttpFront::Impl::Write(Connection* connection, size_t* put) {
  const std::string& reply = connection->reply;
  if (connection->tls != nullptr) return connection->tls->Write(reply.data(), reply.size(), put);
  const ssize_t sent = send(connection->client.get(), reply.data(), reply.size(), MSG_NOSIGNAL);
  if (sent < 0) return MayGoOn(sent) ? TlsResult::kWantsWrite : TlsResult::kBroken;
  *put = static_cast<size_t>(sent);
  return TlsResult::kDone;
}

TlsResult HttpFront::Impl::Handshake(Connection* connection) {
  if (connection->tls == nullptr || connection->tls->ready()) return TlsResult::kDone;
  connection->held = !shares_.May(connection->neighbour, false, now_);
  if (connection->held) return TlsResult::kWantsRead;
  const absl::Duration before = ProcessorTimeOfThread();
  const TlsResult shaken = connection->tls->Handshake();
  shares_.Note(connection->neighbour, false, ProcessorTimeOfThread() - before, now_);
  connection->writes_next = shaken == TlsResult::kWantsWrite;
  return shaken;
}

bool HttpFront::Impl::Receive(uint64_t id, Connection* connection) {
  const auto may_go_on = [](TlsResult result) {
    return result == TlsResult::kWantsRead || result == TlsResult::kWantsWrite;
  };
  const TlsResult shaken = Handshake(connection);
  if (shaken != TlsResult::kDone) return may_go_on(shaken);
  size_t size = 0;
  // To the end: what OpenSSL has read already does not wake poll(). What is too large is refused.
  while (size == 0 && connection->reply.empty()) {
    char piece[4 << 10];
    size_t got = 0;
    const TlsResult read = Read(connection, piece, sizeof piece, &got);
    if (read != TlsResult::kDone) return may_go_on(read);
    connection->request.append(piece, got);
    size = WholeRequest(connection->request, &connection->reply);
  }
  connection->whole = true;
  connection->request.resize(size);
  connection->moved = now_;
  connection->last = connection->refused = !connection->reply.empty();
  if (!connection->last) Decide(id, connection);
  return true;
}

// Who answers a whole request.
void HttpFront::Impl::Decide(uint64_t id, Connection* connection) {
  connection->reply = options_.quick(connection->request);
  connection->last = !connection->reply.empty();
  if (connection->last) return;
  if (connection->tls != nullptr) shares_.Trust(connection->neighbour, now_);  // it has a token
  connection->passed = !AsksFor(connection->request, "/metrics");
  if (connection->passed) return;
  const MutexLock lock(&mutex_);
  if (asked_.size() >= kSlowWaiting) {
    connection->reply = Refuse("503 Service Unavailable");
    connection->last = true;
    return;
  }
  connection->slow = true;
  asked_.emplace_back(id, connection->request);
  changed_.Signal();
}

// False when there are no descriptors for a pair of sockets.
bool HttpFront::Impl::PassOn(Connection* connection) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return false;
  Fd own(pair[0]);
  if (options_.server(Fd(pair[1]), std::move(connection->request))) {
    connection->server = std::move(own);
    ++passed_on_;
  } else {
    connection->reply = Refuse("503 Service Unavailable");
    connection->last = true;
  }
  return true;
}

// Takes what the server has answered.
void HttpFront::Impl::Relay(Connection* connection) {
  const size_t before = connection->reply.size();
  if (before >= kPiece) return;
  connection->reply.resize(kPiece);
  const ssize_t got = recv(connection->server.get(), connection->reply.data() + before,
                           kPiece - before, MSG_DONTWAIT);
  connection->reply.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
  if (got > 0 || (got < 0 && MayGoOn(got))) return;
  connection->last = true;
  connection->moved = now_;
  connection->server.Reset();
  --passed_on_;
}

bool HttpFront::Impl::Send(Connection* connection) {
  while (!connection->reply.empty()) {
    size_t put = 0;
    const TlsResult wrote = Write(connection, &put);
    if (wrote == TlsResult::kWantsRead || wrote == TlsResult::kWantsWrite) return true;
    if (wrote != TlsResult::kDone) return false;
    connection->reply.erase(0, put);
    connection->moved = now_;
  }
  return true;
}

void HttpFront::Impl::TakeSlowAnswers() {
  eventfd_t count = 0;
  eventfd_read(wake_.get(), &count);
  const MutexLock lock(&mutex_);
  for (auto& [id, answer] : std::exchange(answered_, {})) {
    const auto at = connections_.find(id);
    if (at == connections_.end()) continue;
    const auto holds = [](const auto& each) { return each.second.slow && each.second.last; };
    if (std::ranges::count_if(connections_, holds) >= kSlowHeld) {
      connections_.erase(std::ranges::find_if(connections_, holds));
    }
    at->second.reply = std::move(answer);
    at->second.last = true;
    at->second.moved = now_;
  }
}

void HttpFront::Impl::AnswerSlowly() {
  NameThread("http-metrics");
  while (true) {
    std::pair<uint64_t, std::string> next;
    {
      const MutexLock lock(&mutex_);
      while (asked_.empty() && !stopping_) changed_.Wait(&mutex_);
      if (stopping_) return;
      next = std::move(asked_.front());
      asked_.pop_front();
    }
    std::string answer = options_.slow(next.second);
    const MutexLock lock(&mutex_);
    answered_.emplace_back(next.first, std::move(answer));
    eventfd_write(wake_.get(), 1);
  }
}

HttpFront::HttpFront(Options options, const Clock& clock)
    : impl_(std::make_unique<Impl>(std::move(options), clock)) {}
HttpFront::~HttpFront() = default;

}  // namespace nsa::server
