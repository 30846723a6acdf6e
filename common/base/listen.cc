#include "common/base/listen.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/base/status.h"

namespace nsa {
namespace {

constexpr int kBacklog = 1'024;

// Invalid, with errno, when it cannot.
Fd ListenOn(const addrinfo& at, int port) {
  sockaddr_storage address{};
  std::memcpy(&address, at.ai_addr, at.ai_addrlen);
  if (port != 0) reinterpret_cast<sockaddr_in*>(&address)->sin_port = htons(port);
  Fd fd(socket(at.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  constexpr int kOn = 1;
  constexpr int kOff = 0;
  if (at.ai_family == AF_INET6) {
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &kOff, sizeof kOff);
  }
  // Connections that have ended keep no port. Without SO_REUSEPORT no second server shares it.
  if (!fd.valid() || setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &kOn, sizeof kOn) != 0 ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), at.ai_addrlen) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    return Fd();
  }
  return fd;
}

}  // namespace

absl::StatusOr<std::vector<Fd>> ListenOnAll(const std::string& what, const std::string& address,
                                            bool any_port) {
  NSA_ASSIGN_OR_RETURN(HostPort at, ParseHostPort(what, address));
  if (any_port) at.port = "0";
  const absl::StatusOr<SocketAddresses> found = AddressesOf(at);
  std::string why(found.status().message());
  std::vector<Fd> listeners;
  for (const addrinfo* each = found.ok() ? found->get() : nullptr; each != nullptr;
       each = each->ai_next) {
    Fd fd = ListenOn(*each, listeners.empty() ? 0 : PortOf(listeners[0].get()));
    if (!fd.valid()) {
      why = std::strerror(errno);
    } else {
      listeners.push_back(std::move(fd));
    }
  }
  if (!listeners.empty()) return listeners;
  return absl::UnavailableError(absl::StrCat(
      what, ": ", address, " cannot be listened on (", why,
      "); `ss -ltnp` shows which process has the port; choose another, or an address of this "
      "machine"));
}

Fd ListenOnUnix(const sockaddr_un& address) {
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  // bind() gives the file the mode of the socket.
  if (!fd.valid() || fchmod(fd.get(), 0600) != 0 ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    return Fd();
  }
  return fd;
}

int PortOf(int fd) {
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return 0;
  sockaddr_in6 address{};
  std::memcpy(&address, &bound, sizeof address);
  return ntohs(address.sin6_port);  // where sockaddr_in has it, too
}

}  // namespace nsa
