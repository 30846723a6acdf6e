#include "common/base/host_port.h"

#include <poll.h>

#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clean_text.h"
#include "common/base/status.h"

namespace nsa {

absl::StatusOr<HostPort> ParseHostPort(const std::string& what, const std::string& address) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  const std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  const bool host_good =
      !host.empty() && host.find_first_of(bracketed ? "[]/, " : ":[]/, ") == std::string::npos;
  const bool digits = !port.empty() && port.find_first_not_of("0123456789") == std::string::npos;
  int number = 0;
  if (host_good && digits && absl::SimpleAtoi(port, &number) && number <= 65'535) {
    return HostPort{.host = host, .port = port};
  }
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": '", CleanLine(CutText(address, 64)),
                   "' (HOST:PORT with a port from 0 to 65535); write e.g. 127.0.0.1:8000"));
}

absl::StatusOr<HostPort> ParseLoopback(const std::string& what, const std::string& address) {
  NSA_ASSIGN_OR_RETURN(const HostPort at, ParseHostPort(what, address));
  if (at.host == "127.0.0.1" || absl::EqualsIgnoreCase(at.host, "localhost")) {
    return HostPort{.host = "127.0.0.1", .port = at.port};
  }
  const std::string shown = CleanLine(CutText(address, 64));
  if (at.host == "::1") {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": '", shown, "' (127.0.0.1 or localhost, by IPv4 only); take 127.0.0.1:", at.port));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      what, ": '", shown, "' (127.0.0.1 or localhost): the server asks nobody for a ",
      "password, so only programs of this machine may reach it; from another machine use an ",
      "SSH tunnel"));
}

absl::StatusOr<SocketAddresses> AddressesOf(const HostPort& at) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(at.host.c_str(), at.port.c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  return SocketAddresses(found, freeaddrinfo);
}

Fd ConnectTo(const sockaddr* address, socklen_t bytes, absl::Duration patience) {
  Fd fd(socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid() || connect(fd.get(), address, bytes) == 0) return fd;
  if (errno != EINPROGRESS) return Fd();
  pollfd waiting = {fd.get(), POLLOUT, 0};
  if (poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(patience))) <= 0) return Fd();
  int error = 0;
  socklen_t size = sizeof error;
  const bool connected =
      getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
  return connected ? std::move(fd) : Fd();
}

}  // namespace nsa
