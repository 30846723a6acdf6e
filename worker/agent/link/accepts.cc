#include "worker/agent/link/accepts.h"

#include <sys/un.h>

#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/fd.h"
#include "common/base/host_port.h"

namespace nsa::agent {
namespace {

// `name` is a path, or with `abstract` a name without a file.
bool ConnectsToUnix(absl::string_view name, bool abstract, absl::Duration patience) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const size_t skipped = abstract ? 1 : 0;
  if (name.size() + 1 > sizeof address.sun_path) return false;
  std::memcpy(address.sun_path + skipped, name.data(), name.size());
  const size_t bytes = offsetof(sockaddr_un, sun_path) + name.size() + 1;
  return ConnectTo(reinterpret_cast<const sockaddr*>(&address), static_cast<socklen_t>(bytes),
                   patience)
      .valid();
}

HostPort Split(absl::string_view address) {
  for (const absl::string_view scheme : {"dns:///", "dns:", "ipv4:", "ipv6:"}) {
    if (absl::ConsumePrefix(&address, scheme)) break;
  }
  absl::StatusOr<HostPort> parsed = ParseHostPort("coordinator_address", std::string(address));
  if (parsed.ok()) return *std::move(parsed);
  if (absl::ConsumePrefix(&address, "[")) absl::ConsumeSuffix(&address, "]");
  return {.host = std::string(address), .port = "443"};  // gRPC's default
}

bool ConnectsToTcp(absl::string_view address, absl::Duration patience) {
  const absl::StatusOr<SocketAddresses> found = AddressesOf(Split(address));
  if (!found.ok()) return false;
  for (const addrinfo* each = found->get(); each != nullptr; each = each->ai_next) {
    if (ConnectTo(each->ai_addr, each->ai_addrlen, patience).valid()) return true;
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
  const absl::StatusOr<SocketAddresses> found = AddressesOf(Split(address));
  for (const addrinfo* each = found.ok() ? found->get() : nullptr; each != nullptr;
       each = each->ai_next) {
    // A datagram socket is connected without sending anything.
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
  return absl::UnavailableError(
      absl::StrCat("coordinator_address: ", address, " (no route leads there); check the network"));
}

}  // namespace nsa::agent
