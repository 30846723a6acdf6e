#include "common/run/process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/fd.h"
#include "common/base/status.h"
#include "common/run/atomic_file.h"
#include "common/run/spawn_settings.h"
#include "nlohmann/json.hpp"

namespace nsa {
namespace {

absl::Status Gone(pid_t pid) {
  return absl::NotFoundError(absl::StrFormat("process %d: gone", pid));
}

struct Stat {
  char state = '?';
  int64_t start_ticks = 0;
};

// Fields 3 and 22 of /proc/<pid>/stat. Field 2, the name, may contain any characters, also ')' and
// spaces.
absl::StatusOr<Stat> ReadStat(pid_t pid) {
  const absl::StatusOr<std::string> text = ReadWholeFile(absl::StrFormat("/proc/%d/stat", pid));
  // ENOENT, or ESRCH while the process ends. Without a descriptor or memory nothing is known of it.
  if (absl::IsResourceExhausted(text.status())) return text.status();
  if (!text.ok()) return Gone(pid);
  const size_t name_end = text->rfind(')');
  if (name_end == std::string::npos) return Gone(pid);
  const std::vector<std::string> fields =
      absl::StrSplit(text->substr(name_end + 1), ' ', absl::SkipEmpty());
  Stat stat;
  if (fields.size() < 20 || !absl::SimpleAtoi(fields[19], &stat.start_ticks)) {
    return absl::InternalError(absl::StrFormat("process %d: /proc/%d/stat is malformed", pid, pid));
  }
  stat.state = fields[0][0];
  return stat;
}

// Like IdentityOf, but also for a zombie: a child that ended at once still has an identity.
absl::StatusOr<ProcessIdentity> IdentityOfAny(pid_t pid) {
  NSA_ASSIGN_OR_RETURN(const Stat stat, ReadStat(pid));
  NSA_ASSIGN_OR_RETURN(std::string boot_id, BootId());
  return ProcessIdentity{pid, stat.start_ticks, std::move(boot_id)};
}

void Configure(const SpawnOptions& options, int output, SpawnSettings* settings) {
  if (!options.foreground) {
    posix_spawn_file_actions_addopen(&settings->actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&settings->actions, output, 1);
    posix_spawn_file_actions_adddup2(&settings->actions, output, 2);
  }
  // Before that, because dup2() also keeps a descriptor that already is number 3.
  const bool extra = options.extra_fd >= 0;
  if (extra) posix_spawn_file_actions_adddup2(&settings->actions, options.extra_fd, 3);
  posix_spawn_file_actions_addclosefrom_np(&settings->actions, extra ? 4 : 3);
  if (!options.working_dir.empty()) {
    posix_spawn_file_actions_addchdir_np(&settings->actions, options.working_dir.c_str());
  }
}

// Opens the output as a descriptor above 2, so that the child's dup2 calls do not overwrite it.
absl::StatusOr<Fd> OpenOutput(const SpawnOptions& options) {
  if (options.output_fd >= 0) {
    Fd copy(fcntl(options.output_fd, F_DUPFD_CLOEXEC, 3));
    if (!copy.valid()) return absl::ErrnoToStatus(errno, "spawn: output");
    return copy;
  }
  const std::string path = options.output.empty() ? "/dev/null" : options.output.string();
  Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, absl::StrCat("spawn: open output ", path));
  if (fd.get() > 2) return fd;
  Fd higher(fcntl(fd.get(), F_DUPFD_CLOEXEC, 3));
  if (!higher.valid()) return absl::ErrnoToStatus(errno, "spawn: output");
  return higher;
}

absl::Status SpawnError(int error, const std::string& program) {
  const std::string text = absl::StrCat("spawn: ", program, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(text);
    case EACCES:
    case EPERM:
    case ENOEXEC:
      return absl::PermissionDeniedError(text);
    case EAGAIN:
    case ENOMEM:
      return absl::ResourceExhaustedError(text);
    default:
      return absl::ErrnoToStatus(error, absl::StrCat("spawn: ", program));
  }
}

}  // namespace

absl::StatusOr<std::string> BootId() {
  NSA_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile("/proc/sys/kernel/random/boot_id"));
  return std::string(absl::StripSuffix(text, "\n"));
}

absl::StatusOr<ProcessIdentity> IdentityOf(pid_t pid) {
  NSA_ASSIGN_OR_RETURN(const Stat stat, ReadStat(pid));
  if (stat.state == 'Z' || stat.state == 'X') return Gone(pid);
  NSA_ASSIGN_OR_RETURN(std::string boot_id, BootId());
  return ProcessIdentity{pid, stat.start_ticks, std::move(boot_id)};
}

bool IsAlive(const ProcessIdentity& identity) {
  const absl::StatusOr<ProcessIdentity> now = IdentityOf(identity.pid);
  return now.ok() ? *now == identity : absl::IsResourceExhausted(now.status());
}

char ProcessState(const ProcessIdentity& identity) {
  const absl::StatusOr<Stat> stat = ReadStat(identity.pid);
  if (!stat.ok() || stat->start_ticks != identity.start_ticks) return '?';
  const absl::StatusOr<std::string> boot_id = BootId();
  return boot_id.ok() && *boot_id == identity.boot_id ? stat->state : '?';
}

absl::Status SignalProcess(const ProcessIdentity& identity, int signal) {
  const Fd fd(static_cast<int>(syscall(SYS_pidfd_open, identity.pid, 0)));
  if (!fd.valid() && errno == ESRCH) return Gone(identity.pid);
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "pidfd_open (needs Linux 5.3)");
  // The pidfd refers to the process that has the pid now. Check the identity only after opening it.
  NSA_ASSIGN_OR_RETURN(const ProcessIdentity now, IdentityOf(identity.pid));
  if (now != identity) return Gone(identity.pid);
  if (syscall(SYS_pidfd_send_signal, fd.get(), signal, nullptr, 0) == 0) return absl::OkStatus();
  if (errno == ESRCH) return Gone(identity.pid);
  return absl::ErrnoToStatus(errno,
                             absl::StrFormat("signal %d to process %d", signal, identity.pid));
}

absl::Status WriteIdentity(const std::filesystem::path& path, const ProcessIdentity& identity) {
  const nlohmann::json json = {
      {"pid", identity.pid}, {"start_ticks", identity.start_ticks}, {"boot_id", identity.boot_id}};
  return WriteFileAtomically(path, json.dump() + "\n");
}

absl::StatusOr<ProcessIdentity> ReadIdentity(const std::filesystem::path& path) {
  NSA_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto holds = [&json](const char* key, bool (nlohmann::json::*is)() const noexcept) {
    return json.contains(key) && (json[key].*is)();
  };
  if (!json.is_object() || !holds("pid", &nlohmann::json::is_number_integer) ||
      !holds("start_ticks", &nlohmann::json::is_number_integer) ||
      !holds("boot_id", &nlohmann::json::is_string)) {
    return absl::DataLossError(absl::StrCat("identity: ", path.string(), " holds none"));
  }
  return ProcessIdentity{json["pid"].get<pid_t>(), json["start_ticks"].get<int64_t>(),
                         json["boot_id"].get<std::string>()};
}

absl::StatusOr<ProcessIdentity> Spawn(const SpawnOptions& options) {
  if (options.argv.empty() || options.argv[0].empty()) {
    return absl::InvalidArgumentError("spawn: no program");
  }
  // posix_spawn returns ENOENT for a missing folder as well as for a missing program.
  std::error_code error;
  if (!options.working_dir.empty() && !std::filesystem::is_directory(options.working_dir, error)) {
    return absl::NotFoundError(
        absl::StrCat("spawn: working folder ", options.working_dir.string(), " is not there"));
  }
  std::vector<char*> argv;
  for (const std::string& argument : options.argv)
    argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::vector<std::string> pairs;
  for (const auto& [name, value] : options.environment)
    pairs.push_back(absl::StrCat(name, "=", value));
  std::vector<char*> environment;
  for (std::string& pair : pairs) environment.push_back(pair.data());
  environment.push_back(nullptr);

  Fd output;
  if (!options.foreground) {
    NSA_ASSIGN_OR_RETURN(output, OpenOutput(options));
  }
  SpawnSettings settings(options.foreground ? 0 : POSIX_SPAWN_SETSID);
  Configure(options, output.get(), &settings);
  pid_t pid = 0;
  const int failure = posix_spawn(&pid, argv[0], &settings.actions, &settings.attributes,
                                  argv.data(), options.foreground ? environ : environment.data());
  if (failure != 0) return SpawnError(failure, options.argv[0]);
  return IdentityOfAny(pid);  // It has not been reaped yet, so /proc still has it.
}

absl::StatusOr<std::optional<ExitStatus>> TryReap(pid_t pid) {
  int status = 0;
  pid_t reaped = 0;
  do {
    reaped = waitpid(pid, &status, WNOHANG);
  } while (reaped < 0 && errno == EINTR);
  if (reaped == 0) return std::nullopt;
  if (reaped < 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("process %d: not a child of this process", pid));
  }
  if (WIFSIGNALED(status)) return ExitStatus{.code = -1, .signal = WTERMSIG(status)};
  return ExitStatus{.code = WEXITSTATUS(status), .signal = 0};
}

std::map<std::string, std::string> FilterEnvironment(const std::vector<std::string>& allowed) {
  std::map<std::string, std::string> environment;
  for (const std::string& name : allowed) {
    if (const char* value = std::getenv(name.c_str()); value != nullptr) environment[name] = value;
  }
  return environment;
}

}  // namespace nsa
