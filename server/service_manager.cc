#include "server/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "common/base/fd.h"

namespace nsa::server {

void NotifyServiceManager(const std::string& state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un address{};
  if (path == nullptr || (path[0] != '/' && path[0] != '@') ||
      std::strlen(path) >= sizeof(address.sun_path)) {
    return;
  }
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path);
  const size_t length = offsetof(sockaddr_un, sun_path) + std::strlen(path);
  // The name of an abstract socket begins with a NUL byte, which the variable shows as @.
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';
  const Fd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return;
  // A failure is ignored: there is nobody to report it to.
  (void)sendto(fd.get(), state.data(), state.size(), MSG_NOSIGNAL,
               reinterpret_cast<const sockaddr*>(&address), static_cast<socklen_t>(length));
}

}  // namespace nsa::server
