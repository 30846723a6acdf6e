#include "common/run/control_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/listen.h"
#include "common/base/status.h"
#include "common/base/thread_name.h"
#include "common/run/run_file.h"

namespace nsa {
namespace {

constexpr uint32_t kMaxFrameBytes = 64 << 10;
constexpr absl::Duration kServerPatience = absl::Seconds(1);

// A socket's address and the folder descriptor that the address refers to.
struct Address {
  Fd folder;
  sockaddr_un address;
};

absl::StatusOr<Address> AddressOf(const std::filesystem::path& path) {
  const std::filesystem::path parent = path.parent_path();
  Fd folder(open(parent.empty() ? "." : parent.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) {
    return absl::ErrnoToStatus(errno, absl::StrCat("control socket: open ", parent.string()));
  }
  const std::string name =
      absl::StrFormat("/proc/self/fd/%d/%s", folder.get(), path.filename().string());
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (name.size() >= sizeof address.sun_path) {
    return absl::InvalidArgumentError(
        absl::StrCat("control socket: file name '", path.filename().string(), "' is too long"));
  }
  std::memcpy(address.sun_path, name.c_str(), name.size() + 1);
  return Address{std::move(folder), address};
}

// How long a transfer waits for its peer: until a deadline, or until `wake` becomes readable.
struct Patience {
  absl::Duration deadline;  // RealClock().Monotonic()
  int wake = -1;
};

absl::Status WaitFor(int fd, int16_t events, const Patience& patience) {
  while (true) {
    const absl::Duration left = patience.deadline - RealClock().Monotonic();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError("control socket: no answer in time");
    }
    pollfd fds[2] = {{fd, events, 0}, {patience.wake, POLLIN, 0}};
    const int n = poll(fds, 2, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
    if (n < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, "control socket: poll");
    if (n > 0 && fds[1].revents != 0) return absl::CancelledError("control socket: closing");
    if (n > 0) return absl::OkStatus();
  }
}

absl::Status HungUp() { return absl::UnavailableError("control socket: the peer hung up"); }

absl::Status Receive(int fd, char* out, size_t size, const Patience& patience) {
  while (size > 0) {
    NSA_RETURN_IF_ERROR(WaitFor(fd, POLLIN, patience));
    const ssize_t n = recv(fd, out, size, MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return HungUp();
    out += n;
    size -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status SendFrame(int fd, const google::protobuf::MessageLite& message,
                       const Patience& patience) {
  std::string bytes(4, '\0');
  message.AppendToString(&bytes);
  const auto length = static_cast<uint32_t>(bytes.size() - 4);
  if (length > kMaxFrameBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "control socket: message of %d bytes (at most %d)", length, kMaxFrameBytes));
  }
  std::memcpy(bytes.data(), &length, 4);
  for (size_t done = 0; done < bytes.size();) {
    NSA_RETURN_IF_ERROR(WaitFor(fd, POLLOUT, patience));
    const ssize_t n =
        send(fd, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return HungUp();
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status ReceiveFrame(int fd, google::protobuf::MessageLite* message,
                          const Patience& patience) {
  uint32_t length = 0;
  NSA_RETURN_IF_ERROR(Receive(fd, reinterpret_cast<char*>(&length), sizeof length, patience));
  if (length > kMaxFrameBytes) {
    return absl::DataLossError(
        absl::StrFormat("control socket: frame of %d bytes (at most %d)", length, kMaxFrameBytes));
  }
  std::string bytes(length, '\0');
  NSA_RETURN_IF_ERROR(Receive(fd, bytes.data(), bytes.size(), patience));
  if (!message->ParseFromString(bytes)) {
    return absl::DataLossError("control socket: frame holds no message of this kind");
  }
  return absl::OkStatus();
}

class SocketServer final : public ControlServer {
 public:
  SocketServer(Fd listener, Fd wake, Handler handler)
      : listener_(std::move(listener)),
        wake_(std::move(wake)),
        handler_(std::move(handler)),
        thread_([this] { Serve(); }) {}

  ~SocketServer() override {
    const uint64_t one = 1;
    while (write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
    thread_.join();
  }

 private:
  void Serve() {
    NameThread("control");
    while (true) {
      const Patience forever = {RealClock().Monotonic() + absl::Hours(1), wake_.get()};
      const absl::Status ready = WaitFor(listener_.get(), POLLIN, forever);
      if (absl::IsDeadlineExceeded(ready)) continue;
      if (!ready.ok()) return;
      const Fd peer(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (peer.valid()) Answer(peer.get());
    }
  }

  void Answer(int peer) {
    const Patience patience = {RealClock().Monotonic() + kServerPatience, wake_.get()};
    v1::ControlRequest request;
    if (!ReceiveFrame(peer, &request, patience).ok()) return;
    SendFrame(peer, handler_(request), patience).IgnoreError();  // The caller repeats its request.
  }

  const Fd listener_;
  const Fd wake_;
  const Handler handler_;
  std::thread thread_;
};

// Connects before the deadline. If the backlog is full (a stopped worker that got many requests),
// connect() fails with EAGAIN. poll() cannot wait for that, so connect() is tried again.
absl::Status Connect(int fd, const sockaddr_un& address, const Patience& patience) {
  while (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) {
      return absl::UnavailableError(
          absl::StrCat("control socket: nobody listens (", std::strerror(errno), ")"));
    }
    if (RealClock().Monotonic() > patience.deadline) {
      return absl::DeadlineExceededError("control socket: too many wait for an answer already");
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(
    const std::filesystem::path& path, Handler handler) {
  NSA_ASSIGN_OR_RETURN(const Address address, AddressOf(path));
  Fd wake(eventfd(0, EFD_CLOEXEC));
  if (!wake.valid()) return absl::ErrnoToStatus(errno, "control socket: create");
  unlink(path.c_str());
  Fd listener = ListenOnUnix(address.address);
  if (!listener.valid()) {
    return absl::ErrnoToStatus(errno, absl::StrCat("control socket: listen on ", path.string()));
  }
  return std::make_unique<SocketServer>(std::move(listener), std::move(wake), std::move(handler));
}

absl::StatusOr<v1::ControlReply> ControlCall(const std::filesystem::path& path,
                                             const v1::ControlRequest& request,
                                             absl::Duration timeout) {
  const absl::StatusOr<Fd> socket_file = OpenRunSocket(path);
  if (absl::IsNotFound(socket_file.status())) {
    return absl::UnavailableError(socket_file.status().message());
  }
  NSA_RETURN_IF_ERROR(Annotate(socket_file.status(), "control socket"));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  absl::SNPrintF(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d", socket_file->get());
  const Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "control socket: create");
  const Patience patience = {RealClock().Monotonic() + timeout};
  NSA_RETURN_IF_ERROR(Connect(fd.get(), address, patience));
  NSA_RETURN_IF_ERROR(SendFrame(fd.get(), request, patience));
  v1::ControlReply reply;
  NSA_RETURN_IF_ERROR(ReceiveFrame(fd.get(), &reply, patience));
  return reply;
}

}  // namespace nsa
