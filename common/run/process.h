// Processes by identity. A pid alone is reused; (pid, start time, boot id) is not. Signals go
// through a pidfd that was opened while the identity was checked, so a foreign process is never
// hit. Needs Linux 5.3.
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

// NotFound when there is no such process (a zombie counts as none).
absl::StatusOr<ProcessIdentity> IdentityOf(pid_t pid);

// True while that very process lives (a zombie does not).
bool IsAlive(const ProcessIdentity& identity);

// The state letter of /proc/<pid>/stat, '?' when it is gone.
char ProcessState(const ProcessIdentity& identity);

// Sends a signal to that very process. NotFound when it is gone.
absl::Status SignalProcess(const ProcessIdentity& identity, int signal);

// Stored as JSON, atomically (temporary name, fsync, rename).
absl::Status WriteIdentity(const std::filesystem::path& path, const ProcessIdentity& identity);
absl::StatusOr<ProcessIdentity> ReadIdentity(const std::filesystem::path& path);

struct SpawnOptions {
  std::vector<std::string> argv;                   // argv[0] is the program's path; no shell
  std::map<std::string, std::string> environment;  // the whole environment
  std::filesystem::path working_dir;               // empty: the caller's
  std::filesystem::path
      output;  // stdout and stderr are appended here; empty: /dev/null. stdin is /dev/null
};

// posix_spawn with a new session, default signal dispositions, an empty signal mask and no
// inherited descriptors. Safe in a process with gRPC threads. The caller reaps the child. NotFound
// / PermissionDenied / ResourceExhausted as the kernel says, naming the program.
absl::StatusOr<ProcessIdentity> Spawn(const SpawnOptions& options);

// How a child ended, once it has; nothing while it runs. FailedPrecondition when it is not a child
// of this process.
struct ExitStatus {
  int code = -1;  // -1 when ended by a signal
  int signal = 0;
};
absl::StatusOr<std::optional<ExitStatus>> TryReap(pid_t pid);

// Names and values of the caller's environment that are on `allowed` (exact names).
std::map<std::string, std::string> FilterEnvironment(const std::vector<std::string>& allowed);

}  // namespace nsa
