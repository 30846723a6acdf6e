#include "worker/agent/state_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_format.h"
#include "common/process.h"
#include "common/status.h"
#include "nlohmann/json.hpp"

namespace nsa {

absl::StatusOr<std::unique_ptr<StateLock>> StateLock::Take(const std::filesystem::path& state_dir) {
  const std::filesystem::path path = state_dir / "agent.lock";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("state folder: open ", path.string()));
  std::unique_ptr<StateLock> lock(new StateLock(fd));
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const absl::StatusOr<ProcessIdentity> holder = ReadIdentity(path);
    return absl::AlreadyExistsError(absl::StrFormat(
        "state folder: %s is in use by another agent (%s); end it, or give this one a --state-dir "
        "of its own",
        state_dir.string(),
        holder.ok() ? absl::StrFormat("process %d", holder->pid) : "process unknown"));
  }
  NSA_ASSIGN_OR_RETURN(const ProcessIdentity self, IdentityOf(getpid()));
  const nlohmann::json json = {
      {"pid", self.pid}, {"start_ticks", self.start_ticks}, {"boot_id", self.boot_id}};
  // In place: the lock is on this file, not on its name.
  const std::string text = json.dump() + "\n";
  if (ftruncate(fd, 0) != 0 ||
      pwrite(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return absl::ErrnoToStatus(errno, absl::StrCat("state folder: write ", path.string()));
  }
  return lock;
}

StateLock::~StateLock() { close(fd_); }

}  // namespace nsa
