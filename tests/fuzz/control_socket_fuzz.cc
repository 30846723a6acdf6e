// Any bytes to a worker's control socket, and any bytes as a worker's answer. Each connection is
// answered or closed, and the next one is served.
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <mutex>
#include <thread>

#include "common/base/fd.h"
#include "common/run/control_socket.h"
#include "tests/fuzz/fuzz.h"
#include "worker/train/comm/stop.h"

using nsa::Fd;
using nsa::fuzz::Input;
using nsa::fuzz::Require;

namespace {

sockaddr_un AddressOf(const std::filesystem::path& path) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  return address;
}

// A worker as far as its control socket knows it.
std::filesystem::path Worker() {
  static const std::filesystem::path path = nsa::fuzz::Folder() / "control.sock";
  static const auto server = nsa::ControlServer::Start(path, [](const auto& request) {
    nsa::v1::ControlReply reply;
    if (request.has_stop()) {
      nsa::train::StopState state;
      const absl::Status status = state.Request(request.stop());
      nsa::fuzz::RequireRefusal(status);
      if (!status.ok()) reply.set_error(std::string(status.message()));
      Require(state.stop_after() >= 0, "a stop in the past");
    }
    return reply;
  });
  Require(server.ok(), server.status().ToString());
  return path;
}

// What the server answers to these bytes, until it closes the connection.
std::string Ask(std::string_view bytes) {
  const sockaddr_un address = AddressOf(Worker());
  const Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  Require(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0,
          "the control socket takes no connection");
  // The server closes as soon as it has refused: not all may be sent.
  if (send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) >= 0) shutdown(fd.get(), SHUT_WR);
  std::string answer;
  char buffer[4096];
  for (ssize_t n = 0; (n = recv(fd.get(), buffer, sizeof buffer, 0)) > 0;) {
    answer.append(buffer, static_cast<size_t>(n));
  }
  return answer;
}

// A worker that answers as instructed.
class Liar {
 public:
  Liar() {
    const sockaddr_un address = AddressOf(path());
    Require(
        bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
            listen(listener_.get(), 16) == 0,
        "cannot listen");
    std::thread([this] { Serve(); }).detach();
  }
  static std::filesystem::path path() { return nsa::fuzz::Folder() / "liar.sock"; }
  void Say(std::string_view answer) {
    const std::lock_guard lock(mutex_);
    answer_ = answer;
  }

 private:
  void Serve() {
    while (true) {
      const Fd peer(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!peer.valid()) continue;
      char request[64];
      if (recv(peer.get(), request, sizeof request, 0) <= 0) continue;
      const std::lock_guard lock(mutex_);
      // The caller may have hung up already.
      (void)!send(peer.get(), answer_.data(), answer_.size(), MSG_NOSIGNAL);
    }
  }

  const Fd listener_{socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::mutex mutex_;
  std::string answer_;
};

std::string Framed(std::string_view payload) {
  std::string frame(4, '\0');
  for (size_t i = 0; i < 4; ++i) frame[i] = static_cast<char>(payload.size() >> (8 * i) & 0xff);
  return frame.append(payload);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const uint8_t kind = input.Byte();
  const std::string bytes = kind % 2 == 1 ? Framed(input.Rest()) : std::string(input.Rest());
  if (kind / 2 % 2 == 0) {
    Ask(bytes);
    return 0;
  }
  static Liar* const liar = new Liar;  // its thread lives as long as the process
  liar->Say(bytes);
  nsa::v1::ControlRequest ping;
  ping.mutable_ping();
  const auto reply = nsa::ControlCall(Liar::path(), ping, absl::Seconds(5));
  Require(!absl::IsDeadlineExceeded(reply.status()), "an answer that was waited for too long");
  nsa::fuzz::RequireRefusal(reply.status());
  return 0;
}
