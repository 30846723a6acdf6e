#include "worker/agent/link/accepts.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/fd.h"

namespace nsa::agent {
namespace {

bool Connects(const sockaddr* address, socklen_t bytes, absl::Duration patience) {
  const Fd fd(socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return false;
  if (connect(fd.get(), address, bytes) == 0) return true;
  if (errno != EINPROGRESS) return false;
  pollfd waiting = {fd.get(), POLLOUT, 0};
  if (poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) <= 0) return false;
  int error = 0;
  socklen_t size = sizeof error;
  return getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
}

// `name` is a path, or with `abstract` a name without a file.
bool ConnectsToUnix(absl::string_view name, bool abstract, absl::Duration patience) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const size_t skipped = abstract ? 1 : 0;
  if (name.size() + 1 > sizeof address.sun_path) return false;
  std::memcpy(address.sun_path + skipped, name.data(), name.size());
  const size_t bytes = offsetof(sockaddr_un, sun_path) + name.size() + 1;
  return Connects(reinterpret_cast<const sockaddr*>(&address), static_cast<socklen_t>(bytes),
                  patience);
}

struct HostPort {
  std::string host;
  std::string port;
};

HostPort Split(absl::string_view address) {
  for (const absl::string_view scheme : {"dns:///", "dns:", "ipv4:", "ipv6:"}) {
    if (absl::ConsumePrefix(&address, scheme)) break;
  }
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos) return {std::string(address), "443"};  // gRPC's default
  absl::string_view host = address.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  return {std::string(host), std::string(address.substr(colon + 1))};
}

bool ConnectsToTcp(absl::string_view address, absl::Duration patience) {
  const HostPort to = Split(address);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(to.host.c_str(), to.port.c_str(), &hints, &found) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    if (Connects(each->ai_addr, each->ai_addrlen, patience)) return true;
  }
  return false;
}

}  // namespace

bool AcceptsConnections(const std::string& address, absl::Duration patience) {
  absl::string_view rest = address;
  if (absl::ConsumePrefix(&rest, "unix-abstract:")) return ConnectsToUnix(rest, true, patience);
  if (absl::ConsumePrefix(&rest, "unix:")) {
    // unix:/path and unix:///path are the same.
    if (absl::StartsWith(rest, "//")) rest.remove_prefix(2);
    return ConnectsToUnix(rest, false, patience);
  }
  return ConnectsToTcp(address, patience);
}

absl::StatusOr<std::string> AddressTowards(const std::string& address) {
  if (absl::StartsWith(address, "unix")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "coordinator_address: ", address, " (HOST:PORT, from which rank_address follows); set it"));
  }
  const HostPort to = Split(address);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;  // which is connected without sending anything
  addrinfo* found = nullptr;
  if (getaddrinfo(to.host.c_str(), to.port.c_str(), &hints, &found) == 0) {
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
    for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
      const Fd fd(socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      sockaddr_storage own = {};
      socklen_t size = sizeof own;
      char host[NI_MAXHOST] = {};
      if (fd.valid() && connect(fd.get(), each->ai_addr, each->ai_addrlen) == 0 &&
          getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
          getnameinfo(reinterpret_cast<sockaddr*>(&own), size, host, sizeof host, nullptr, 0,
                      NI_NUMERICHOST) == 0) {
        return std::string(host);
      }
    }
  }
  return absl::UnavailableError(
      absl::StrCat("coordinator_address: ", address, " (no route leads there); check the network"));
}

}  // namespace nsa::agent
