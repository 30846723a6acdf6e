// Gets one reply, headers and body, from an HTTP server on loopback. Empty when it cannot be
// reached.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace nsa {

inline std::string HttpGet(const std::string& address, const std::string& path) {
  int port = 0;
  if (!absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) return "";
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const std::string request = absl::StrCat("GET ", path, " HTTP/1.0\r\n\r\n");
  std::string answer;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0 &&
      send(fd, request.data(), request.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(request.size())) {
    char buffer[16384];
    for (ssize_t n = 0; (n = read(fd, buffer, sizeof(buffer))) > 0;) {
      answer.append(buffer, static_cast<size_t>(n));
    }
  }
  close(fd);
  return answer;
}

}  // namespace nsa
