// HTTP requests to a server on loopback.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/fd.h"

namespace nsa {

// A new connection on which these bytes were sent; invalid when the server cannot be reached.
inline Fd HttpSend(const std::string& address, const std::string& bytes) {
  int port = 0;
  if (!absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) return Fd();
  Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0 &&
      send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(bytes.size())) {
    return fd;
  }
  return Fd();
}

// Everything that the server sends until it closes the connection.
inline std::string HttpRead(const Fd& fd) {
  std::string answer;
  char buffer[16384];
  for (ssize_t n = 0; (n = read(fd.get(), buffer, sizeof(buffer))) > 0;) {
    answer.append(buffer, static_cast<size_t>(n));
  }
  return answer;
}

// One reply, headers and body. Empty when the server cannot be reached.
inline std::string HttpGet(const std::string& address, const std::string& path) {
  return HttpRead(HttpSend(address, absl::StrCat("GET ", path, " HTTP/1.0\r\n\r\n")));
}

}  // namespace nsa
