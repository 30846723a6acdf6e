#include "common/base/write.h"

#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace nsa {

bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

absl::Status WriteError(int error, std::string_view what) {
  const absl::Status status =
      absl::ErrnoToStatus(error, absl::string_view(what.data(), what.size()));
  if (error != ENOSPC && error != EDQUOT && error != EFBIG) return status;
  return absl::ResourceExhaustedError(
      absl::StrCat(status.message(), "; free space there, or name a place on another disk"));
}

}  // namespace nsa
