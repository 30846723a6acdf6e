#include "server/state_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/durable_folder.h"

namespace nsa::server {
namespace {

absl::Status MakePrivateFolder(const std::filesystem::path& path) {
  // Jobs are acknowledged once they are on disk: the folder's own name must be there too.
  if (const absl::Status status = MakeDurableFolder(path); !status.ok()) {
    return absl::PermissionDeniedError(
        absl::StrCat("state_dir: cannot make ", status.message(), "; choose another one"));
  }
  if (chmod(path.c_str(), 0700) != 0) {
    return absl::PermissionDeniedError(absl::StrCat("state_dir: ", path.string(),
                                                    " does not belong to this user (",
                                                    std::strerror(errno), "); choose another one"));
  }
  return absl::OkStatus();
}

std::string Holder(int fd) {
  char text[32] = {};
  const ssize_t length = pread(fd, text, sizeof(text) - 1, 0);
  return length > 0 ? std::string(absl::StripAsciiWhitespace(text)) : "unknown";
}

}  // namespace

absl::StatusOr<StateLock> StateLock::Acquire(const std::filesystem::path& state_dir) {
  if (const absl::Status status = MakePrivateFolder(state_dir); !status.ok()) return status;
  const std::filesystem::path path = state_dir / "coordinator.lock";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(path.string(), ": ", std::strerror(errno), "; check its owner"));
  }
  StateLock lock(fd);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("state_dir: ", state_dir.string(), " is in use by nsa-coordinator pid ",
                     Holder(fd), "; stop that one or choose another --state-dir"));
  }
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(fd, 0) != 0 || pwrite(fd, pid.data(), pid.size(), 0) < 0) {
    return absl::InternalError(absl::StrCat(path.string(), ": ", std::strerror(errno)));
  }
  return lock;
}

StateLock::StateLock(StateLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

StateLock::~StateLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace nsa::server
