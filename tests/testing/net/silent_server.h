// A server that hangs.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <string>

#include "common/base/fd.h"
#include "gtest/gtest.h"

namespace nsa {

// Accepts connections at a path, as the kernel does for a process that hangs, and says nothing.
class SilentServer {
 public:
  explicit SilentServer(const std::string& path) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(socket_.get(), 64), 0);
  }

 private:
  const Fd socket_{socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
};

}  // namespace nsa
