#include "server/watch/connection_source.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>

#include "absl/strings/str_cat.h"

namespace nsa::server {
namespace {

ConnectionSource OfIpv4(const in_addr& host, in_port_t port) {
  char text[INET_ADDRSTRLEN] = "";
  inet_ntop(AF_INET, &host, text, sizeof text);
  return {.address = absl::StrCat("ipv4:", text, ":", ntohs(port)), .neighbour = text};
}

}  // namespace

ConnectionSource SourceOf(const sockaddr_storage& from) {
  if (from.ss_family == AF_INET) {
    sockaddr_in address{};
    std::memcpy(&address, &from, sizeof address);
    return OfIpv4(address.sin_addr, address.sin_port);
  }
  sockaddr_in6 address{};
  std::memcpy(&address, &from, sizeof address);
  if (IN6_IS_ADDR_V4MAPPED(&address.sin6_addr)) {
    in_addr host{};
    std::memcpy(&host, &address.sin6_addr.s6_addr[12], sizeof host);
    return OfIpv4(host, address.sin6_port);
  }
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(AF_INET6, &address.sin6_addr, text, sizeof text);
  ConnectionSource source{.address = absl::StrCat("ipv6:[", text, "]:", ntohs(address.sin6_port))};
  std::memset(&address.sin6_addr.s6_addr[8], 0, 8);
  inet_ntop(AF_INET6, &address.sin6_addr, text, sizeof text);
  source.neighbour = text;
  return source;
}

}  // namespace nsa::server
