// Starting, identifying and signalling processes. A pid can be reused; (pid, start time, boot id)
// cannot. A signal is sent through a pidfd whose process was identified after the pidfd was opened,
// so it never reaches another process. Needs Linux 5.3.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nsa {

struct ProcessIdentity {
  pid_t pid = 0;
  int64_t start_ticks = 0;  // field 22 of /proc/<pid>/stat
  std::string boot_id;      // /proc/sys/kernel/random/boot_id
  bool operator==(const ProcessIdentity&) const = default;
};

// Of the present start of this machine.
absl::StatusOr<std::string> BootId();

// NotFound if there is no such process or it is a zombie.
absl::StatusOr<ProcessIdentity> IdentityOf(pid_t pid);

// True while this process is alive; a zombie is not. Also true when there is no descriptor or
// memory to look with.
bool IsAlive(const ProcessIdentity& identity);

// The state letter of /proc/<pid>/stat; '?' if the process no longer exists.
char ProcessState(const ProcessIdentity& identity);

// Sends a signal to this process. NotFound if it has ended.
absl::Status SignalProcess(const ProcessIdentity& identity, int signal);

// The identity is stored as JSON. WriteIdentity replaces the file atomically (temporary name,
// fsync, rename).
absl::Status WriteIdentity(const std::filesystem::path& path, const ProcessIdentity& identity);
absl::StatusOr<ProcessIdentity> ReadIdentity(const std::filesystem::path& path);

struct SpawnOptions {
  std::vector<std::string> argv;                   // argv[0] is the program's path; no shell
  std::map<std::string, std::string> environment;  // the complete environment
  std::filesystem::path working_dir;               // empty: the caller's
  std::filesystem::path
      output;          // stdout and stderr are appended here; empty: /dev/null. stdin is /dev/null
  int output_fd = -1;  // instead of `output`: an open file
  int extra_fd = -1;   // becomes descriptor 3 of the child; -1: it has none
  // Instead, the child stays in the caller's session and has its stdin, stdout, stderr and
  // environment; `environment` and `output` are ignored.
  bool foreground = false;
};

// Starts a process with posix_spawn, in a new session unless in the foreground, with default signal
// dispositions, an empty signal mask and no other inherited descriptors. Safe in a process with
// gRPC threads. The caller must reap the child. NotFound, PermissionDenied or ResourceExhausted,
// with the program, depending on errno.
absl::StatusOr<ProcessIdentity> Spawn(const SpawnOptions& options);

// How a child ended; nothing while it is running. FailedPrecondition if it is not a child of this
// process.
struct ExitStatus {
  int code = -1;  // -1 if a signal ended it
  int signal = 0;
};
absl::StatusOr<std::optional<ExitStatus>> TryReap(pid_t pid);

// The variables of the caller's environment whose names are in `allowed` (exact names).
std::map<std::string, std::string> FilterEnvironment(const std::vector<std::string>& allowed);

}  // namespace nsa
