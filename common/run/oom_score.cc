#include "common/run/oom_score.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/fd.h"

namespace nsa {

absl::Status RaiseOomScore(pid_t pid, int least) {
  const std::string path = absl::StrCat("/proc/", pid, "/oom_score_adj");
  const Fd file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.valid()) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": open"));
  char now[16] = {};
  const std::string wanted = absl::StrCat(least);
  if (read(file.get(), now, sizeof(now) - 1) <= 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": read"));
  }
  if (std::atoi(now) >= least) return absl::OkStatus();
  if (pwrite(file.get(), wanted.data(), wanted.size(), 0) == static_cast<ssize_t>(wanted.size())) {
    return absl::OkStatus();
  }
  return absl::ErrnoToStatus(errno, absl::StrCat(path, ": write"));
}

}  // namespace nsa
