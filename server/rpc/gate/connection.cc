#include "server/rpc/gate/connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace nsa::server {
namespace {

// Then other connections have their turn.
constexpr int kRounds = 4;
constexpr int kPairBytes = 128 << 10;

// Names `fd` in the abstract namespace, where gRPC sees the name as that of its peer.
bool Name(int fd, const std::string& name) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  if (name.size() + 1 > sizeof address.sun_path) return false;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return bind(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0;
}

TlsResult ResultOfErrno() {
  return errno == EAGAIN || errno == EINTR ? TlsResult::kWantsRead : TlsResult::kBroken;
}

}  // namespace

char* RelayBuffer::Space(size_t* size) {
  if (bytes_ == nullptr) bytes_ = std::make_unique<char[]>(kSize);
  if (begin_ > 0) {
    std::memmove(bytes_.get(), bytes_.get() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
  }
  *size = kSize - end_;
  return bytes_.get() + end_;
}

void RelayBuffer::Taken(size_t size) {
  begin_ += size;
  if (begin_ == end_) begin_ = end_ = 0;
}

Connection::Connection(Fd client, ConnectionSource source, std::unique_ptr<TlsSession> tls,
                       Bucket* strangers, absl::Duration now)
    : client_(std::move(client)),
      source_(std::move(source)),
      tls_(std::move(tls)),
      frames_(strangers),
      accepted_(now),
      heard_(now) {}

Connection::~Connection() {
  if (tls_ != nullptr && fault_ == nullptr) tls_->Close();
}

Connection::State Connection::Pump(absl::Duration now) {
  for (int round = 0; round < kRounds; ++round) {
    bool moved = false;
    for (const Moved each :
         {Handshake(), FromClient(now), ToBackend(now), FromBackend(), ToClient()}) {
      if (each == Moved::kFailed) return State::kClosed;
      moved = moved || each == Moved::kSomething;
    }
    if (NoteEnds(now)) return State::kClosed;
    if (!moved || NeedsBackend()) return State::kOpen;
  }
  return State::kBusy;
}

Fd Connection::MakeBackend() {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) return Fd();
  Fd own(pair[0]);
  Fd other(pair[1]);
  if (tls_ != nullptr) caller_->certificate_name = tls_->ClientName();
  name_.emplace(source_.address, caller_);
  // Without a name it would look like a caller of the unix socket.
  if (!Name(own.get(), name_->name())) return Fd();
  for (const int fd : pair) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kPairBytes, sizeof kPairBytes);
  backend_ = std::move(own);
  return other;
}

uint32_t Connection::client_events() const {
  const bool reads = !client_ended_ && !up_.full() && !frames_.waits();
  return (reads || handshakes() ? EPOLLIN : 0U) | (client_blocked_ ? EPOLLOUT : 0U);
}

uint32_t Connection::backend_events() const {
  if (!backend_.valid() || backend_ended_) return 0;
  return (down_.full() ? 0U : EPOLLIN) | (backend_blocked_ ? EPOLLOUT : 0U);
}

void Connection::Shrink() {
  up_.Shrink();
  down_.Shrink();
}

void Connection::Reset() {
  constexpr linger kAtOnce{.l_onoff = 1, .l_linger = 0};
  setsockopt(client_.get(), SOL_SOCKET, SO_LINGER, &kAtOnce, sizeof kAtOnce);
}

Connection::Moved Connection::Handshake() {
  if (!handshakes()) return Moved::kNothing;
  const Moved moved = Note(tls_->Handshake());
  return moved == Moved::kFailed ? Fail("tls") : moved;
}

Connection::Moved Connection::FromClient(absl::Duration now) {
  if (client_ended_ || up_.full() || handshakes()) return Moved::kNothing;
  size_t size = 0;
  char* const to = up_.Space(&size);
  size_t got = 0;
  const TlsResult result = Read(to, size, &got);
  if (result == TlsResult::kEnded) {
    client_ended_ = true;
    return Moved::kSomething;
  }
  if (result == TlsResult::kDone) {
    up_.Added(got);
    heard_ = now;
  }
  return Note(result);
}

Connection::Moved Connection::ToBackend(absl::Duration now) {
  passed_ += frames_.Pass(up_.content().substr(passed_), known(), now);
  if (frames_.fault() != nullptr) return Fail(frames_.fault());
  backend_blocked_ = false;
  if (!backend_.valid() || passed_ == 0) return Moved::kNothing;
  const ssize_t sent = send(backend_.get(), up_.content().data(), passed_, MSG_NOSIGNAL);
  if (sent < 0 && ResultOfErrno() == TlsResult::kBroken) {
    // gRPC has ended it, and what it said last may still have to be read.
    up_.Taken(passed_);
    passed_ = 0;
    return Moved::kNothing;
  }
  backend_blocked_ = sent < static_cast<ssize_t>(passed_);
  if (sent <= 0) return Moved::kNothing;
  up_.Taken(static_cast<size_t>(sent));
  passed_ -= static_cast<size_t>(sent);
  return Moved::kSomething;
}

Connection::Moved Connection::FromBackend() {
  if (!backend_.valid() || backend_ended_ || down_.full()) return Moved::kNothing;
  size_t size = 0;
  char* const to = down_.Space(&size);
  const ssize_t got = recv(backend_.get(), to, size, 0);
  if (got > 0) {
    frames_.NoteAnswer({to, static_cast<size_t>(got)}, known());
    down_.Added(static_cast<size_t>(got));
    return Moved::kSomething;
  }
  if (got < 0 && ResultOfErrno() == TlsResult::kWantsRead) return Moved::kNothing;
  backend_ended_ = true;
  return Moved::kSomething;
}

// Comes after FromClient(): what it says of the client being blocked counts.
Connection::Moved Connection::ToClient() {
  if (down_.empty()) return Moved::kNothing;
  size_t put = 0;
  const TlsResult result = Write(down_.content(), &put);
  if (result == TlsResult::kDone) down_.Taken(put);
  return Note(result);
}

Connection::Moved Connection::Note(TlsResult result) {
  client_blocked_ = result == TlsResult::kWantsWrite;
  if (result == TlsResult::kDone) return Moved::kSomething;
  return client_blocked_ || result == TlsResult::kWantsRead ? Moved::kNothing : Moved::kFailed;
}

Connection::Moved Connection::Fail(const char* fault) {
  fault_ = fault;
  return Moved::kFailed;
}

TlsResult Connection::Read(char* to, size_t size, size_t* got) {
  if (tls_ != nullptr) return tls_->Read(to, size, got);
  const ssize_t read = recv(client_.get(), to, size, 0);
  if (read < 0) return ResultOfErrno();
  *got = static_cast<size_t>(read);
  return read == 0 ? TlsResult::kEnded : TlsResult::kDone;
}

TlsResult Connection::Write(std::string_view bytes, size_t* put) {
  if (tls_ != nullptr) return tls_->Write(bytes.data(), bytes.size(), put);
  const ssize_t sent = send(client_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent < 0) {
    return ResultOfErrno() == TlsResult::kBroken ? TlsResult::kBroken : TlsResult::kWantsWrite;
  }
  *put = static_cast<size_t>(sent);
  return TlsResult::kDone;
}

// True when nothing is left to do.
bool Connection::NoteEnds(absl::Duration now) {
  if (client_ended_ || backend_ended_) {
    if (ended_ == absl::ZeroDuration()) ended_ = now;
  }
  if (backend_ended_) return down_.empty();
  if (!client_ended_ || told_backend_ || frames_.waits() || passed_ > 0) return false;
  if (!backend_.valid()) return !frames_.speaks();
  // What is left of up_ is the beginning of a frame.
  shutdown(backend_.get(), SHUT_WR);
  told_backend_ = true;
  return false;
}

}  // namespace nsa::server
