#include "server/notice/mail.h"

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
#include "common/base/clean_text.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/run/process.h"

namespace nsa::server {
namespace {

constexpr size_t kPrintedBytes = 4 << 10;
constexpr int kLookEveryMs = 200;
constexpr absl::Duration kKillPatience = absl::Seconds(5);

// How a child is started. posix_spawn because fork() is not safe with gRPC's threads.
struct Settings {
  Settings() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
  }
  ~Settings() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  Settings(const Settings&) = delete;
  Settings& operator=(const Settings&) = delete;

  posix_spawn_file_actions_t actions{};
  posix_spawnattr_t attributes{};
};

// A file in memory, above the standard descriptors, that dup2() can then give to a child.
Fd MemoryFile(const char* name) {
  const Fd file(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  return Fd(file.valid() ? fcntl(file.get(), F_DUPFD_CLOEXEC, 3) : -1);
}

Fd FileWith(std::string_view content) {
  Fd file = MemoryFile("mail");
  while (file.valid() && !content.empty()) {
    const ssize_t written = write(file.get(), content.data(), content.size());
    if (written <= 0) return Fd();
    content.remove_prefix(static_cast<size_t>(written));
  }
  if (file.valid()) lseek(file.get(), 0, SEEK_SET);
  return file;
}

// A file that cannot grow beyond its size, so a program that prints without end fills no memory.
Fd FileForOutput() {
  Fd file = MemoryFile("mail-output");
  const bool sealed = file.valid() && ftruncate(file.get(), kPrintedBytes) == 0 &&
                      fcntl(file.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) == 0;
  return sealed ? std::move(file) : Fd();
}

// What was written into it: the child shares its position.
std::string Printed(const Fd& file) {
  const off_t end = lseek(file.get(), 0, SEEK_CUR);
  std::string text(std::min(static_cast<size_t>(std::max<off_t>(end, 0)), kPrintedBytes), '\0');
  const ssize_t bytes = pread(file.get(), text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(bytes, 0)));
  return text;
}

void Configure(int input, int output, Settings* settings) {
  sigset_t all;
  sigset_t none;
  sigfillset(&all);
  sigemptyset(&none);
  posix_spawnattr_setsigdefault(&settings->attributes, &all);
  posix_spawnattr_setsigmask(&settings->attributes, &none);
  posix_spawnattr_setflags(
      &settings->attributes,
      static_cast<int16_t>(POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK));
  posix_spawn_file_actions_adddup2(&settings->actions, input, 0);
  posix_spawn_file_actions_adddup2(&settings->actions, output, 1);
  posix_spawn_file_actions_adddup2(&settings->actions, output, 2);
  posix_spawn_file_actions_addclosefrom_np(&settings->actions, 3);
}

// 0 or an error number.
int Start(const std::string& program, const Fd& input, const Fd& output, pid_t* pid) {
  Settings settings;
  Configure(input.get(), output.get(), &settings);
  std::string arguments[] = {program, "-t", "-i"};
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::vector<std::string> pairs;
  for (const auto& [name, value] :
       FilterEnvironment({"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR"})) {
    pairs.push_back(absl::StrCat(name, "=", value));
  }
  std::vector<char*> environment;
  for (std::string& pair : pairs) environment.push_back(pair.data());
  environment.push_back(nullptr);
  return posix_spawn(pid, program.c_str(), &settings.actions, &settings.attributes, argv.data(),
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

int Reap(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  return status;
}

Outcome Again(const std::string& said) { return {.kind = Outcome::kAgain, .said = said}; }

}  // namespace

Outcome SendMail(const std::filesystem::path& program, std::string_view message,
                 absl::Duration limit, const std::atomic<bool>& cancelled) {
  const Fd input = FileWith(message);
  const Fd output = FileForOutput();
  if (!input.valid() || !output.valid()) {
    return Again(absl::StrCat("no memory for the mail (", std::strerror(errno), ")"));
  }
  pid_t pid = 0;
  if (const int failure = Start(program.string(), input, output, &pid); failure != 0) {
    return Again(absl::StrCat(CleanLine(program.string()), " cannot be started (",
                              std::strerror(failure), ")"));
  }
  const bool ended = WaitFor(pid, limit, cancelled);
  const bool killed = !ended && Kill(pid);
  const int status = ended || killed ? Reap(pid) : 0;
  if (!ended) {
    return Again(absl::StrCat(cancelled ? "cancelled" : "not done after ",
                              cancelled ? "" : absl::FormatDuration(limit),
                              killed ? "; killed" : "; it cannot be killed"));
  }
  if (WIFSIGNALED(status)) return Again(absl::StrCat("ended by signal ", WTERMSIG(status)));
  return JudgeExit(WEXITSTATUS(status), Printed(output));
}

}  // namespace nsa::server
