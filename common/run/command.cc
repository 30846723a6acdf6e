#include "common/run/command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/run/spawn_settings.h"

namespace nsa {
namespace {

constexpr int kLookEveryMs = 200;
constexpr absl::Duration kKillPatience = absl::Seconds(5);

// A file in memory, above the standard descriptors, that dup2() can then give to a child.
Fd MemoryFile(const char* name) {
  const Fd file(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  return Fd(file.valid() ? fcntl(file.get(), F_DUPFD_CLOEXEC, 3) : -1);
}

Fd FileWith(std::string_view content) {
  Fd file = MemoryFile("command-input");
  while (file.valid() && !content.empty()) {
    const ssize_t written = write(file.get(), content.data(), content.size());
    if (written <= 0) return Fd();
    content.remove_prefix(static_cast<size_t>(written));
  }
  if (file.valid()) lseek(file.get(), 0, SEEK_SET);
  return file;
}

// A file that cannot grow beyond its size, so a program that prints without end fills no memory.
Fd FileForOutput(size_t bytes) {
  Fd file = MemoryFile("command-output");
  const bool sealed = file.valid() && ftruncate(file.get(), static_cast<off_t>(bytes)) == 0 &&
                      fcntl(file.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) == 0;
  return sealed ? std::move(file) : Fd();
}

// What was written into it: the child shares its position.
std::string Printed(const Fd& file, size_t limit) {
  const off_t end = lseek(file.get(), 0, SEEK_CUR);
  std::string text(std::min(static_cast<size_t>(std::max<off_t>(end, 0)), limit), '\0');
  const ssize_t bytes = pread(file.get(), text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(bytes, 0)));
  return text;
}

struct Files {
  Fd input;
  Fd output;
  Fd errors;
};

void Configure(const Files& files, SpawnSettings* settings) {
  posix_spawn_file_actions_adddup2(&settings->actions, files.input.get(), 0);
  posix_spawn_file_actions_adddup2(&settings->actions, files.output.get(), 1);
  posix_spawn_file_actions_adddup2(&settings->actions, files.errors.get(), 2);
  posix_spawn_file_actions_addclosefrom_np(&settings->actions, 3);
}

// 0 or an error number.
int Start(const Command& command, const Files& files, pid_t* pid) {
  SpawnSettings settings(POSIX_SPAWN_SETSID);
  Configure(files, &settings);
  std::vector<std::string> arguments = command.argv;
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::vector<std::string> pairs;
  for (const auto& [name, value] : command.environment) {
    pairs.push_back(absl::StrCat(name, "=", value));
  }
  std::vector<char*> environment;
  for (std::string& pair : pairs) environment.push_back(pair.data());
  environment.push_back(nullptr);
  return posix_spawn(pid, argv[0], &settings.actions, &settings.attributes, argv.data(),
                     environment.data());
}

bool HasEnded(pid_t pid) {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid;
}

// Waits for the end of the child, which stays to be reaped; false when the time is up.
bool WaitFor(pid_t pid, absl::Duration limit, const std::atomic<bool>& cancelled) {
  const RealClock clock;
  const absl::Duration begin = clock.Monotonic();
  const Fd handle(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  while (!cancelled && clock.Monotonic() - begin < limit) {
    pollfd wait{.fd = handle.get(), .events = POLLIN};
    poll(&wait, 1, kLookEveryMs);  // without a handle it only waits
    if (HasEnded(pid)) return true;
  }
  return false;
}

// Ends it and what it started. False if it lives on: a program that has become another user cannot
// be killed by us, and one that waits for a broken disk by nobody.
bool Kill(pid_t pid) {
  kill(-pid, SIGKILL);
  return WaitFor(pid, kKillPatience, false);
}

ExitStatus Reap(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  if (WIFSIGNALED(status)) return {.code = -1, .signal = WTERMSIG(status)};
  return {.code = WEXITSTATUS(status), .signal = 0};
}

}  // namespace

absl::StatusOr<CommandEnd> RunCommand(const Command& command, const std::atomic<bool>& cancelled) {
  const Files files = {.input = FileWith(command.input),
                       .output = FileForOutput(command.printed_bytes),
                       .errors = FileForOutput(command.printed_bytes)};
  if (!files.input.valid() || !files.output.valid() || !files.errors.valid()) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory (", std::strerror(errno), ")"));
  }
  pid_t pid = 0;
  if (const int failure = Start(command, files, &pid); failure != 0) {
    return absl::UnavailableError(
        absl::StrCat(command.argv[0], " cannot be started (", std::strerror(failure), ")"));
  }
  CommandEnd end;
  const bool ended = WaitFor(pid, command.limit, cancelled);
  end.immortal = !ended && !Kill(pid);
  if (!end.immortal) {
    const ExitStatus exit = Reap(pid);
    if (ended) end.exit = exit;
  }
  end.output = Printed(files.output, command.printed_bytes);
  end.errors = Printed(files.errors, command.printed_bytes);
  return end;
}

}  // namespace nsa
