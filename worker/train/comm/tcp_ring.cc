#include "worker/train/comm/tcp_ring.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/run/atomic_file.h"
#include "common/run/rank_address.h"

namespace nsa::train {
namespace {

constexpr absl::Duration kLookAgain = absl::Milliseconds(5);
constexpr absl::Duration kLookAtGuests = absl::Milliseconds(100);
constexpr int kBacklog = 64;  // of connections that are not accepted yet

class Deadline {
 public:
  explicit Deadline(absl::Duration timeout) : end_(clock_.Monotonic() + timeout) {}
  absl::Duration left() const { return end_ - clock_.Monotonic(); }
  bool over() const { return left() <= absl::ZeroDuration(); }
  int milliseconds() const {
    const int64_t ms = absl::ToInt64Milliseconds(absl::Ceil(left(), absl::Milliseconds(1)));
    return static_cast<int>(std::clamp<int64_t>(ms, 0, 60000));
  }

 private:
  RealClock clock_;
  absl::Duration end_;
};

absl::Status Failed(const char* what) {
  return absl::InternalError(
      absl::StrCat(what, ": ", std::strerror(errno), "; see the system's log"));
}

absl::Status Late(const std::string& who) {
  return ReasonError(
      absl::StatusCode::kDeadlineExceeded, Reason::kPeerLost,
      absl::StrCat(who, " did not come in time (restart.hang_timeout_seconds); see its log"));
}

absl::Status Lost(const char* who, int error) {
  return ReasonError(absl::StatusCode::kUnavailable, Reason::kPeerLost,
                     absl::StrCat("the ", who, " rank closed its connection",
                                  error == 0 ? "" : absl::StrCat(" (", std::strerror(error), ")"),
                                  "; see its log"));
}

// Marks the folder as used by this rank. It cannot be used twice: the other ranks could read an
// address that an earlier start has left behind, where nobody listens.
absl::Status TakePlace(const RingOptions& options) {
  std::error_code error;
  std::filesystem::create_directories(options.meeting, error);
  if (error) {
    return absl::FailedPreconditionError(absl::StrCat("rendezvous: ", options.meeting.string(),
                                                      ": ", error.message(), "; make it writable"));
  }
  const std::filesystem::path place = options.meeting / absl::StrFormat("rank-%04d", options.rank);
  const Fd taken(open(place.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
  if (taken.valid()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("rendezvous: ", place.string(), ": ", std::strerror(errno),
                   " (one start a folder); give an empty --rendezvous folder"));
}

// A listening socket; if it is not valid, errno says what is wrong.
Fd ListenOn(const SocketAddress& address) {
  Fd listener(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;  // a port of connections that have just ended is free
  if (!listener.valid() ||
      setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(listener.get(), address.get(), address.length) != 0 ||
      listen(listener.get(), kBacklog) != 0) {
    return Fd();
  }
  return listener;
}

absl::Status CannotListen(const ListenAt& at, int error) {
  if (error == EADDRINUSE) {
    return absl::FailedPreconditionError(
        absl::StrFormat("ports of the ranks: %d to %d at %s (none is free); name more ports",
                        at.first_port, at.last_port, at.host));
  }
  return absl::InvalidArgumentError(absl::StrCat("address of the ranks: ", at.host, " (",
                                                 std::strerror(error),
                                                 "); name an address that this machine has"));
}

// Listens on a free port and writes address and token into the folder.
absl::StatusOr<Fd> Listen(const RingOptions& options, RankAddress* own) {
  const ListenAt& at = options.listen;
  Fd listener;
  for (uint32_t port = at.first_port; !listener.valid(); ++port) {
    const auto address = ToSocketAddress(at.host, static_cast<uint16_t>(port));
    NSA_RETURN_IF_ERROR(Annotate(address.status(), "address of the ranks"));
    listener = ListenOn(*address);
    const bool taken = !listener.valid() && errno == EADDRINUSE;
    if (!listener.valid() && !(taken && port < at.last_port)) return CannotListen(at, errno);
  }
  SocketAddress bound;
  bound.length = sizeof(bound.storage);
  if (getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.length) !=
          0 ||
      getrandom(own->token.data(), own->token.size(), 0) !=
          static_cast<ssize_t>(own->token.size())) {
    return Failed("listening");
  }
  own->host = at.host;
  own->port = bound.port();
  NSA_RETURN_IF_ERROR(
      WriteFileAtomically(RankAddressFile(options.meeting, options.rank), FormatRankAddress(*own)));
  return listener;
}

// Waits until a connection that has been begun is made. 0, or what is wrong as an errno.
int FinishConnecting(int fd, const Deadline& deadline) {
  pollfd waiting = {.fd = fd, .events = POLLOUT};
  int ready = 0;
  while ((ready = poll(&waiting, 1, deadline.milliseconds())) <= 0) {
    if (ready < 0 && errno != EINTR) return errno;
    if (deadline.over()) return ETIMEDOUT;
  }
  int error = 0;
  socklen_t length = sizeof(error);
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

// Connects and sends the token, which fits into any send buffer. 0, or what is wrong as an errno.
int ConnectTo(const RankAddress& to, const SocketAddress& address, const Deadline& deadline,
              Fd* connection) {
  *connection = Fd(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!connection->valid()) return errno;
  if (connect(connection->get(), address.get(), address.length) != 0) {
    if (errno != EINPROGRESS) return errno;
    if (const int error = FinishConnecting(connection->get(), deadline); error != 0) return error;
  }
  const ssize_t sent = send(connection->get(), to.token.data(), to.token.size(), MSG_NOSIGNAL);
  if (sent != static_cast<ssize_t>(to.token.size())) return sent < 0 ? errno : EPIPE;
  const int on = 1;
  setsockopt(connection->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return 0;
}

absl::StatusOr<Fd> Connect(const RingOptions& options, int next, const RankAddress& to,
                           const Deadline& deadline) {
  NSA_ASSIGN_OR_RETURN(const SocketAddress address, ToSocketAddress(to.host, to.port));
  Fd connection;
  const int error = ConnectTo(to, address, deadline, &connection);
  if (error == 0) return connection;
  return ReasonError(
      error == ETIMEDOUT ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kUnavailable,
      Reason::kPeerLost,
      absl::StrFormat("rank %d cannot connect to rank %d at %s: %s; see that rank's log, and let "
                      "each machine reach the other's ports",
                      options.rank, next, to.HostAndPort(), std::strerror(error)));
}

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

// Lets in the one connection that sends the token. Anyone who can reach the port can open others,
// so those that have not sent a whole token are few, none stays long, and none delays another.
class Door {
 public:
  Door(Fd listener, const RankToken& token) : listener_(std::move(listener)), token_(token) {}

  // Waits for `most`, or until something arrives, and looks at what has arrived.
  void Look(absl::Duration most) {
    if (came_.has_value()) return absl::SleepFor(most);
    std::vector<pollfd> waiting = {{.fd = listener_.get(), .events = POLLIN}};
    for (const Guest& guest : guests_) {
      waiting.push_back({.fd = guest.connection.get(), .events = POLLIN});
    }
    poll(waiting.data(), waiting.size(), static_cast<int>(absl::ToInt64Milliseconds(most)));
    while (Accept()) {
    }
    Receive();
  }

  std::optional<Fd>& came() { return came_; }

 private:
  static constexpr size_t kMost = 64;
  struct Guest {
    Fd connection;
    RankToken token = {};
    size_t have = 0;
    Deadline patience{absl::Seconds(1)};
  };

  bool Accept() {
    Fd connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!connection.valid()) return false;
    guests_.push_back({.connection = std::move(connection)});
    Receive();  // before one is sent away: it may be the one that is waited for
    if (guests_.size() > kMost) guests_.pop_front();
    return true;
  }

  // Reads what has arrived.
  void Receive() {
    for (auto guest = guests_.begin(); guest != guests_.end() && !came_.has_value();) {
      const ssize_t got = recv(guest->connection.get(), guest->token.data() + guest->have,
                               guest->token.size() - guest->have, 0);
      if (got > 0) guest->have += static_cast<size_t>(got);
      const bool whole = guest->have == guest->token.size();
      if (whole && SameToken(guest->token, token_)) came_ = std::move(guest->connection);
      const bool waits = got > 0 || (got < 0 && WouldBlock(errno));
      guest = whole || !waits || guest->patience.over() ? guests_.erase(guest) : ++guest;
    }
  }

  const Fd listener_;
  const RankToken token_;
  std::list<Guest> guests_;
  std::optional<Fd> came_;
};

// Waits for the address of the next rank. Meanwhile others may come to the door.
absl::StatusOr<RankAddress> FindNext(const RingOptions& options, int next, const Deadline& deadline,
                                     Door* door) {
  while (true) {
    const absl::StatusOr<std::string> text = ReadWholeFile(RankAddressFile(options.meeting, next));
    const auto address = text.ok() ? ParseRankAddress(*text) : std::nullopt;
    if (address.has_value()) return *address;
    if (deadline.over()) return Late(absl::StrCat("rank ", next));
    door->Look(kLookAgain);
  }
}

absl::StatusOr<Fd> AwaitPrevious(const RingOptions& options, const RankAddress& own, int previous,
                                 const Deadline& deadline, Door* door) {
  while (!door->came().has_value()) {
    if (deadline.over()) {
      return Late(absl::StrFormat("rank %d, which connects to rank %d at %s,", previous,
                                  options.rank, own.HostAndPort()));
    }
    door->Look(std::min(deadline.left(), kLookAtGuests));
  }
  return *std::move(door->came());
}

// Sends as much as the socket takes and removes it from `out`.
absl::Status SendSome(int fd, std::span<const std::byte>* out) {
  const ssize_t sent = send(fd, out->data(), out->size(), MSG_NOSIGNAL);
  if (sent < 0) return WouldBlock(errno) ? absl::OkStatus() : Lost("next", errno);
  *out = out->subspan(static_cast<size_t>(sent));
  return absl::OkStatus();
}

// Receives what has arrived and removes it from `in`.
absl::Status ReceiveSome(int fd, std::span<std::byte>* in) {
  const ssize_t got = recv(fd, in->data(), in->size(), 0);
  if (got == 0) return Lost("previous", 0);
  if (got < 0) return WouldBlock(errno) ? absl::OkStatus() : Lost("previous", errno);
  *in = in->subspan(static_cast<size_t>(got));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TcpRing> TcpRing::Meet(const RingOptions& options) {
  const Deadline deadline(options.timeout);
  const int next = (options.rank + 1) % options.world_size;
  const int previous = (options.rank + options.world_size - 1) % options.world_size;
  NSA_RETURN_IF_ERROR(TakePlace(options));
  RankAddress own;
  NSA_ASSIGN_OR_RETURN(Fd listener, Listen(options, &own));
  Door door(std::move(listener), own.token);
  NSA_ASSIGN_OR_RETURN(const RankAddress to, FindNext(options, next, deadline, &door));
  NSA_ASSIGN_OR_RETURN(Fd sending, Connect(options, next, to, deadline));
  NSA_ASSIGN_OR_RETURN(Fd receiving, AwaitPrevious(options, own, previous, deadline, &door));
  return TcpRing(std::move(sending), std::move(receiving), options.timeout);
}

absl::Status TcpRing::Transfer(std::span<const std::byte> out, std::span<std::byte> in) {
  const Deadline deadline(timeout_);
  while (!out.empty() || !in.empty()) {
    // A connection that has nothing left to transfer is not checked: its rank may have ended
    // normally.
    pollfd waiting[2] = {{.fd = out.empty() ? -1 : next_.get(), .events = POLLOUT},
                         {.fd = in.empty() ? -1 : previous_.get(), .events = POLLIN}};
    if (poll(waiting, 2, deadline.milliseconds()) < 0 && errno != EINTR) return Failed("poll");
    if (waiting[0].revents != 0) NSA_RETURN_IF_ERROR(SendSome(next_.get(), &out));
    if (waiting[1].revents != 0) NSA_RETURN_IF_ERROR(ReceiveSome(previous_.get(), &in));
    if ((!out.empty() || !in.empty()) && deadline.over()) {
      return Late(in.empty() ? "the next rank" : "the previous rank");
    }
  }
  return absl::OkStatus();
}

absl::Status TcpRing::Check() {
  pollfd look[2] = {{.fd = next_.get(), .events = POLLRDHUP},
                    {.fd = previous_.get(), .events = POLLRDHUP}};
  if (poll(look, 2, 0) < 0 && errno != EINTR) return Failed("poll");
  constexpr int16_t kGone = POLLRDHUP | POLLHUP | POLLERR;
  if ((look[0].revents & kGone) != 0) return Lost("next", 0);
  if ((look[1].revents & kGone) != 0) return Lost("previous", 0);
  return absl::OkStatus();
}

}  // namespace nsa::train
