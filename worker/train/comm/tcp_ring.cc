#include "worker/train/comm/tcp_ring.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/run/atomic_file.h"

namespace nsa::train {
namespace {

constexpr absl::Duration kLookAgain = absl::Milliseconds(5);

// What a rank writes into the folder. The previous rank connects to the port and sends the token.
struct Address {
  uint16_t port = 0;  // on 127.0.0.1
  std::array<unsigned char, 16> token = {};
};

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

std::filesystem::path AddressFile(const RingOptions& options, int rank) {
  return options.meeting / absl::StrFormat("rank-%04d.address", rank);
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

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

// Listens on a free port and writes address and token into the folder.
absl::StatusOr<Fd> Listen(const RingOptions& options, Address* own) {
  Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof(address);
  if (!listener.valid() ||
      bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(listener.get(), 16) != 0 ||
      getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      getrandom(own->token.data(), own->token.size(), 0) !=
          static_cast<ssize_t>(own->token.size())) {
    return Failed("listening on 127.0.0.1");
  }
  own->port = ntohs(address.sin_port);
  const std::string_view bytes(reinterpret_cast<const char*>(own), sizeof(*own));
  NSA_RETURN_IF_ERROR(WriteFileAtomically(AddressFile(options, options.rank), bytes));
  return listener;
}

absl::StatusOr<Address> FindNext(const RingOptions& options, int next, const Deadline& deadline) {
  while (true) {
    const absl::StatusOr<std::string> bytes = ReadWholeFile(AddressFile(options, next));
    if (bytes.ok() && bytes->size() == sizeof(Address)) {
      Address address;
      std::memcpy(&address, bytes->data(), sizeof(address));
      return address;
    }
    if (deadline.over()) return Late(absl::StrCat("rank ", next));
    absl::SleepFor(kLookAgain);
  }
}

// Connects and sends the token. A loopback connection to a listener succeeds at once, and the
// token fits into any send buffer.
absl::StatusOr<Fd> Connect(const Address& to) {
  Fd socket_fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Loopback(to.port);
  if (!socket_fd.valid()) return Failed("socket");
  if (connect(socket_fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      send(socket_fd.get(), to.token.data(), to.token.size(), MSG_NOSIGNAL) !=
          static_cast<ssize_t>(to.token.size())) {
    return Lost("next", errno);
  }
  const int on = 1;
  setsockopt(socket_fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  fcntl(socket_fd.get(), F_SETFL, O_NONBLOCK);
  return socket_fd;
}

// Whether a new connection sends this rank's token. Waits for one second at most.
bool PresentsToken(int fd, const Address& own) {
  std::array<unsigned char, 16> token = {};
  size_t have = 0;
  const Deadline deadline(absl::Seconds(1));
  while (have < token.size() && !deadline.over()) {
    pollfd waiting = {.fd = fd, .events = POLLIN};
    poll(&waiting, 1, deadline.milliseconds());
    const ssize_t got = recv(fd, token.data() + have, token.size() - have, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (got > 0) have += static_cast<size_t>(got);
  }
  return token == own.token;
}

absl::StatusOr<Fd> AcceptPrevious(const Fd& listener, const Address& own, int previous,
                                  const Deadline& deadline) {
  while (!deadline.over()) {
    pollfd waiting = {.fd = listener.get(), .events = POLLIN};
    poll(&waiting, 1, deadline.milliseconds());
    Fd connection(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection.valid() && PresentsToken(connection.get(), own)) return connection;
  }
  return Late(absl::StrCat("rank ", previous));
}

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

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
  Address own;
  NSA_ASSIGN_OR_RETURN(const Fd listener, Listen(options, &own));
  NSA_ASSIGN_OR_RETURN(const Address to, FindNext(options, next, deadline));
  NSA_ASSIGN_OR_RETURN(Fd sending, Connect(to));
  NSA_ASSIGN_OR_RETURN(Fd receiving, AcceptPrevious(listener, own, previous, deadline));
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
