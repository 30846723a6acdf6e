#include "server/rpc/gate/gate.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/listen.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/thread_name.h"
#include "common/rpc/block_sigpipe.h"
#include "server/rpc/gate/connection.h"
#include "server/rpc/gate/crowd.h"
#include "server/rpc/gate/unix_peer.h"
#include "spdlog/spdlog.h"

namespace nsa::server {
namespace {

constexpr int kAcceptedAtOnce = 32;
constexpr int kEventsAtOnce = 64;
constexpr absl::Duration kSweepEvery = absl::Milliseconds(250);
constexpr absl::Duration kWaitStep = absl::Milliseconds(20);
// How long the rest may take once one side has ended.
constexpr absl::Duration kEndPatience = absl::Seconds(5);
constexpr absl::Duration kStopPatience = absl::Seconds(1);
constexpr absl::Duration kLogEvery = absl::Minutes(1);
// Streams a second of all strangers together.
constexpr double kStrangersStreams = 500;
// Connections a second that gRPC is given: it must have time to take leave of those that have
// ended.
constexpr double kHandedOn = 500;

// What an event of epoll is about: an id and, in the two lowest bits, one of these.
enum Tag : uint64_t { kWoken = 0, kListener = 1, kClient = 2, kBackend = 3 };

constexpr std::string_view kUnixAddress = "unix:";
constexpr char kThisProcess[] = "this process";  // a neighbour

// With a share of the descriptors: one of so many parts.
GateLimits LimitsOf(rlim_t part) {
  rlimit descriptors{};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  GateLimits limits;
  limits.connections = static_cast<int>(std::clamp<rlim_t>(descriptors.rlim_cur / part, 8, 1'024));
  limits.strangers = limits.of_neighbour = limits.connections / 2;
  limits.strangers_of_neighbour = limits.connections / 4;
  return limits;
}

// The path of a unix socket; empty: `address` is a TCP port's.
std::filesystem::path SocketOf(const std::string& address) {
  return address.starts_with(kUnixAddress) ? address.substr(kUnixAddress.size()) : "";
}

absl::StatusOr<std::vector<Fd>> ListenAt(const std::string& address) {
  const std::filesystem::path path = SocketOf(address);
  if (path.empty()) return ListenOnAll("listen_address", address);
  std::error_code error;
  std::filesystem::remove(path, error);
  sockaddr_un at{.sun_family = AF_UNIX, .sun_path = {}};
  path.native().copy(at.sun_path, sizeof at.sun_path - 1);
  std::vector<Fd> listeners;
  listeners.push_back(ListenOnUnix(at));
  if (listeners[0].valid()) return listeners;
  return absl::UnavailableError(absl::StrCat("state_dir: ", path.string(),
                                             " cannot be listened on (", std::strerror(errno),
                                             "); check the space and the mode of its folder"));
}

ConnectionSource SourceOf(const UnixPeer& peer) {
  return {.address = OriginOf(peer),
          .neighbour = peer.pid == getpid() ? kThisProcess : absl::StrCat("user ", peer.uid)};
}

}  // namespace

GateLimits GateLimits::OfTcp() { return LimitsOf(6); }

GateLimits GateLimits::OfUnixSocket() {
  GateLimits limits = LimitsOf(30);
  limits.silence = absl::InfiniteDuration();
  return limits;
}

class Gate::Impl {
 public:
  Impl(Options options, std::optional<TlsServer> tls, std::vector<Fd> listeners)
      : options_(std::move(options)),
        socket_(SocketOf(options_.address)),
        tls_(std::move(tls)),
        listeners_(std::move(listeners)),
        strangers_(kStrangersStreams, kStrangersStreams),
        handed_on_(kHandedOn, kHandedOn),
        crowd_(options_.limits),
        epoll_(epoll_create1(EPOLL_CLOEXEC)),
        wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    const std::string& address = options_.address;
    address_ = local() ? address
                       : absl::StrCat(address.substr(0, address.rfind(':') + 1),
                                      PortOf(listeners_[0].get()));
  }
  ~Impl();

  void Start(std::function<void(Fd)> hand_on);
  void StopAccepting();
  const std::string& address() const { return address_; }
  GateCounts counts() const {
    return {.known = known_,
            .strangers = unknown_,
            .handshakes = absl::Nanoseconds(handshake_nanos_.load())};
  }

 private:
  struct Watched {
    Watched(uint64_t with_id, Crowd::Member counted, Fd client, ConnectionSource source,
            std::unique_ptr<TlsSession> tls, Bucket* strangers, absl::Duration now)
        : id(with_id),
          member(counted),
          connection(std::move(client), std::move(source), std::move(tls), strangers, now) {}
    bool waits() const { return held || connection.waits() || connection.NeedsBackend(); }

    const uint64_t id;
    Crowd::Member member;
    Connection connection;
    bool held = false;  // its handshake waits for its share
    uint32_t client_events = 0;
    uint32_t backend_events = 0;
  };
  using Connections = std::map<uint64_t, std::unique_ptr<Watched>>;  // the oldest first

  bool local() const { return !socket_.empty(); }
  void Loop();
  int WaitTime() const;
  void Handle(const epoll_event& event);
  void Accept(int listener);
  void Admit(Fd client, const sockaddr_storage& from);
  bool MakeRoom(const std::string& neighbour);
  void Note(Watched* watched);
  void Pump(uint64_t id);
  Connection::State Move(Watched* watched);
  bool HandOn(Watched* watched);
  void Watch(Watched* watched);
  void Sweep();
  void EndGreediest();
  void Resume();
  void ListenAgain(bool listen);
  const char* Overdue(const Watched& watched) const;
  void End(Connections::iterator at, const char* reason);
  void Count(const char* reason, const std::string& neighbour);
  void Log();
  void Control(int operation, int fd, uint32_t events, uint64_t tag);

  const Options options_;
  const std::filesystem::path socket_;  // empty: a TCP port
  const std::optional<TlsServer> tls_;
  std::vector<Fd> listeners_;
  std::string address_;
  std::function<void(Fd)> hand_on_;
  std::atomic<int> known_ = 0;
  std::atomic<int> unknown_ = 0;
  std::atomic<int64_t> handshake_nanos_ = 0;
  std::atomic<bool> stopping_ = false;
  Mutex mutex_;
  bool accepting_ ABSL_GUARDED_BY(mutex_) = false;

  // Used by the thread only.
  Bucket strangers_;
  Bucket handed_on_;
  Connections connections_;
  Crowd crowd_;
  uint64_t next_id_ = 1;
  uint64_t turn_ = 0;
  std::vector<uint64_t> busy_;
  bool waits_ = false;      // some connection waits for its share
  bool listening_ = false;  // the listeners are watched
  absl::Duration now_;
  absl::Duration swept_;
  absl::Duration resumed_;
  absl::Duration logged_ = -absl::InfiniteDuration();
  std::map<std::string, int> ended_;  // since the last line of the log, by reason
  std::string last_neighbour_;

  const Fd epoll_;
  const Fd wake_;
  std::thread thread_;
};

Gate::Impl::~Impl() {
  StopAccepting();
  stopping_ = true;
  eventfd_write(wake_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

void Gate::Impl::Start(std::function<void(Fd)> hand_on) {
  hand_on_ = std::move(hand_on);
  {
    const MutexLock lock(&mutex_);
    accepting_ = true;
  }
  Control(EPOLL_CTL_ADD, wake_.get(), EPOLLIN, kWoken);
  for (size_t i = 0; i < listeners_.size(); ++i) {
    Control(EPOLL_CTL_ADD, listeners_[i].get(), EPOLLIN, i << 2 | kListener);
  }
  listening_ = true;
  thread_ = std::thread([this] { Loop(); });
}

void Gate::Impl::StopAccepting() {
  const MutexLock lock(&mutex_);
  accepting_ = false;
  // The thread uses them under the lock only.
  if (local() && !listeners_.empty()) unlink(socket_.c_str());
  listeners_.clear();
}

void Gate::Impl::Loop() {
  NameThread(local() ? "gate-unix" : "gate");
  BlockSigpipe();
  absl::Duration stop_at = absl::InfiniteDuration();
  std::array<epoll_event, kEventsAtOnce> events;
  while (true) {
    const int ready = epoll_wait(epoll_.get(), events.data(), kEventsAtOnce, WaitTime());
    now_ = RealClock().Monotonic();
    for (const uint64_t id : std::exchange(busy_, {})) Pump(id);
    for (int i = 0; i < ready; ++i) Handle(events[i]);
    if (waits_ && now_ - resumed_ >= kWaitStep) Resume();
    if (now_ - swept_ >= kSweepEvery) Sweep();
    if (!stopping_) continue;
    if (stop_at == absl::InfiniteDuration()) stop_at = now_ + kStopPatience;
    if (connections_.empty() || now_ >= stop_at) break;
  }
  while (!connections_.empty()) End(connections_.begin(), nullptr);
}

int Gate::Impl::WaitTime() const {
  if (!busy_.empty()) return 0;
  return static_cast<int>(absl::ToInt64Milliseconds(waits_ || stopping_ ? kWaitStep : kSweepEvery));
}

void Gate::Impl::Handle(const epoll_event& event) {
  const uint64_t id = event.data.u64 >> 2;
  switch (event.data.u64 & 3) {
    case kWoken: {
      eventfd_t count = 0;
      eventfd_read(wake_.get(), &count);
      return;
    }
    case kListener:
      return Accept(static_cast<int>(id));
    case kClient:
      if (const auto at = connections_.find(id);
          at != connections_.end() && (event.events & (EPOLLERR | EPOLLHUP)) != 0) {
        return End(at, nullptr);  // it has gone
      }
      return Pump(id);
    default:
      return Pump(id);
  }
}

void Gate::Impl::Accept(int listener) {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    Fd client;
    {
      const MutexLock lock(&mutex_);
      if (!accepting_) return;
      client = Fd(accept4(listeners_[listener].get(), reinterpret_cast<sockaddr*>(&from), &size,
                          SOCK_NONBLOCK | SOCK_CLOEXEC));
    }
    if (client.valid()) {
      Admit(std::move(client), from);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      Count("no_descriptors", "");
      return ListenAgain(false);  // until the next sweep
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    }
  }
}

void Gate::Impl::Admit(Fd client, const sockaddr_storage& from) {
  const int fd = client.get();
  ConnectionSource source = local() ? SourceOf(PeerOf(fd)) : SourceOf(from);
  if (source.neighbour != kThisProcess && !MakeRoom(source.neighbour)) {
    return Count("full", source.neighbour);
  }
  constexpr int kOn = 1;
  if (!local()) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &kOn, sizeof kOn);
  const uint64_t id = next_id_++;
  const Crowd::Member member = crowd_.Add(id, source.neighbour);
  auto watched = std::make_unique<Watched>(id, member, std::move(client), std::move(source),
                                           tls_.has_value() ? tls_->Accept(fd) : nullptr,
                                           local() ? nullptr : &strangers_, now_);
  watched->client_events = EPOLLIN;
  Control(EPOLL_CTL_ADD, fd, EPOLLIN, id << 2 | kClient);
  connections_[id] = std::move(watched);
}

// Ends a stranger if need be. False when only known clients are left to end.
bool Gate::Impl::MakeRoom(const std::string& neighbour) {
  while (!crowd_.HasRoom(neighbour)) {
    const std::optional<uint64_t> victim = crowd_.Victim(neighbour);
    if (!victim.has_value()) return false;
    const auto at = connections_.find(*victim);
    Note(at->second.get());  // it may have shown its token just now
    if (!at->second->member.known()) End(at, "displaced");
  }
  return true;
}

void Gate::Impl::Note(Watched* watched) {
  crowd_.Note(&watched->member, watched->connection.speaks(), watched->connection.known());
}

void Gate::Impl::Pump(uint64_t id) {
  const auto at = connections_.find(id);
  if (at == connections_.end()) return;
  Watched& watched = *at->second;
  Connection& connection = watched.connection;
  Connection::State state = Move(&watched);
  if (state == Connection::State::kOpen && connection.NeedsBackend() && handed_on_.Take(now_)) {
    if (!HandOn(&watched)) return End(at, "no_descriptors");
    state = Move(&watched);
  }
  if (state == Connection::State::kClosed) return End(at, connection.fault());
  if (state == Connection::State::kBusy) busy_.push_back(id);
  Note(&watched);
  waits_ = waits_ || watched.waits();
  Watch(&watched);
}

// Moves what can be moved; a handshake only within its neighbour's share.
Connection::State Gate::Impl::Move(Watched* watched) {
  Connection& connection = watched->connection;
  if (!connection.handshakes()) return connection.Pump(now_);
  watched->held = !crowd_.MayHandshake(watched->member, now_);
  if (watched->held) return Connection::State::kOpen;
  const absl::Duration before = ProcessorTimeOfThread();
  const Connection::State state = connection.Pump(now_);
  const absl::Duration took = ProcessorTimeOfThread() - before;
  crowd_.NoteHandshake(watched->member, took, now_);
  handshake_nanos_ += absl::ToInt64Nanoseconds(took);
  return state;
}

bool Gate::Impl::HandOn(Watched* watched) {
  Fd other = watched->connection.MakeBackend();
  if (!other.valid()) return false;
  const MutexLock lock(&mutex_);
  if (!accepting_) return true;  // its end closes, as after a shutdown
  hand_on_(std::move(other));
  return true;
}

// Tells epoll what the connection waits for now.
void Gate::Impl::Watch(Watched* watched) {
  const Connection& connection = watched->connection;
  const uint32_t client = watched->held ? 0 : connection.client_events();
  if (client != watched->client_events) {
    Control(EPOLL_CTL_MOD, connection.client(), client, watched->id << 2 | kClient);
    watched->client_events = client;
  }
  // With no event to wait for it is taken out: epoll would report its end again and again.
  const uint32_t backend = connection.backend_events();
  const uint32_t before = std::exchange(watched->backend_events, backend);
  if (backend == before) return;
  const int change = before == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  Control(backend == 0 ? EPOLL_CTL_DEL : change, connection.backend(), backend,
          watched->id << 2 | kBackend);
}

// Those that wait for their share.
void Gate::Impl::Resume() {
  waits_ = false;
  resumed_ = now_;
  std::vector<uint64_t> ids;
  for (const auto& [id, watched] : connections_) {
    if (watched->waits()) ids.push_back(id);
  }
  // Nobody is always the first.
  if (!ids.empty()) std::rotate(ids.begin(), ids.begin() + ++turn_ % ids.size(), ids.end());
  for (const uint64_t id : ids) Pump(id);
}

void Gate::Impl::Sweep() {
  swept_ = now_;
  for (auto each = connections_.begin(); each != connections_.end();) {
    const auto at = each++;
    Note(at->second.get());
    Connection& connection = at->second->connection;
    connection.Shrink();
    const absl::Duration ended = connection.ended();
    if (ended > absl::ZeroDuration() && now_ - ended > kEndPatience) {
      End(at, nullptr);
    } else if (const char* const reason = Overdue(*at->second); reason != nullptr) {
      End(at, reason);
    }
  }
  EndGreediest();
  known_ = crowd_.known();
  unknown_ = crowd_.strangers();
  crowd_.Forget(now_);
  ListenAgain(true);
  Log();
}

// Those that do not end what they have begun. A client may begin many calls before it says anything
// in one of them, its token included, so that it cannot be made to wait.
void Gate::Impl::EndGreediest() {
  const auto open_of = [](const auto& each) -> size_t {
    const Connection& connection = each.second->connection;
    return connection.known() ? 0 : connection.open_streams();
  };
  size_t open = 0;
  for (const auto& each : connections_) open += open_of(each);
  while (open > options_.limits.open_streams) {
    const auto most =
        std::max_element(connections_.begin(), connections_.end(),
                         [&](const auto& a, const auto& b) { return open_of(a) < open_of(b); });
    if (open_of(*most) == 0) return;  // they have become known meanwhile
    open -= open_of(*most);
    End(most, "open_streams");
  }
}

// Why a connection has had time enough; null: it has not.
const char* Gate::Impl::Overdue(const Watched& watched) const {
  const Connection& connection = watched.connection;
  if (connection.known()) return nullptr;
  if (!connection.speaks() && now_ - connection.accepted() > options_.limits.greeting) {
    return watched.held ? "handshakes" : "silent";
  }
  return now_ - connection.heard() > options_.limits.silence ? "idle" : nullptr;
}

void Gate::Impl::ListenAgain(bool listen) {
  const MutexLock lock(&mutex_);
  if (listen == listening_ || !accepting_) return;
  listening_ = listen;
  for (size_t i = 0; i < listeners_.size(); ++i) {
    Control(listen ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, listeners_[i].get(), EPOLLIN,
            i << 2 | kListener);
  }
}

// Null: for no fault of the client's.
void Gate::Impl::End(Connections::iterator at, const char* reason) {
  Connection& connection = at->second->connection;
  if (reason != nullptr) {
    // The alert of a handshake that failed says why, and must arrive.
    if (connection.speaks() || connection.fault() == nullptr) connection.Reset();
    Count(reason, connection.source().neighbour);
  }
  crowd_.Remove(at->second->member);
  connections_.erase(at);
}

void Gate::Impl::Count(const char* reason, const std::string& neighbour) {
  if (options_.ended) options_.ended(reason);
  ++ended_[reason];
  last_neighbour_ = neighbour;
}

void Gate::Impl::Log() {
  if (ended_.empty() || now_ - logged_ < kLogEvery) return;
  logged_ = now_;
  spdlog::warn(
      "{}: ended connections that overstepped a limit (docs/limits.md): {}; the last one was from "
      "{}",
      local() ? socket_.filename().string() : "listen_address",
      absl::StrJoin(ended_, ", ", absl::PairFormatter(" ")), last_neighbour_);
  ended_.clear();
}

void Gate::Impl::Control(int operation, int fd, uint32_t events, uint64_t tag) {
  epoll_event event{.events = events, .data = {.u64 = tag}};
  epoll_ctl(epoll_.get(), operation, fd, &event);
}

absl::StatusOr<std::unique_ptr<Gate>> Gate::Open(Options options) {
  std::optional<TlsServer> tls;
  if (!options.tls.certificate.empty()) {
    NSA_ASSIGN_OR_RETURN(tls, TlsServer::Make(options.tls));
  }
  NSA_ASSIGN_OR_RETURN(std::vector<Fd> listeners, ListenAt(options.address));
  return std::unique_ptr<Gate>(
      new Gate(std::make_unique<Impl>(std::move(options), std::move(tls), std::move(listeners))));
}

Gate::Gate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Gate::~Gate() = default;
void Gate::Start(std::function<void(Fd)> hand_on) { impl_->Start(std::move(hand_on)); }
void Gate::StopAccepting() { impl_->StopAccepting(); }
const std::string& Gate::address() const { return impl_->address(); }
GateCounts Gate::counts() const { return impl_->counts(); }

}  // namespace nsa::server
