#include "common/oom_score.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"

namespace nsa {

absl::Status RaiseOomScore(pid_t pid, int least) {
  const std::string path = absl::StrCat("/proc/", pid, "/oom_score_adj");
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": open"));
  absl::Status status;
  char now[16] = {};
  const std::string wanted = absl::StrCat(least);
  if (read(file, now, sizeof(now) - 1) <= 0) {
    status = absl::ErrnoToStatus(errno, absl::StrCat(path, ": read"));
  } else if (std::atoi(now) < least &&
             pwrite(file, wanted.data(), wanted.size(), 0) != static_cast<ssize_t>(wanted.size())) {
    status = absl::ErrnoToStatus(errno, absl::StrCat(path, ": write"));
  }
  close(file);
  return status;
}

}  // namespace nsa
