#include "client/commands/model/run_program.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace nsa::client {
namespace {

// The attributes and file actions for posix_spawn; frees them.
class Settings {
 public:
  Settings() {
    posix_spawnattr_init(&attributes_);
    posix_spawn_file_actions_init(&actions_);
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    posix_spawn_file_actions_addclosefrom_np(&actions_, 3);
  }
  ~Settings() {
    posix_spawnattr_destroy(&attributes_);
    posix_spawn_file_actions_destroy(&actions_);
  }
  Settings(const Settings&) = delete;
  Settings& operator=(const Settings&) = delete;

  // Starts the program; 0 or an errno.
  int Spawn(const std::vector<std::string>& argv, pid_t* pid) const {
    std::vector<char*> words;
    for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    return posix_spawn(pid, words[0], &actions_, &attributes_, words.data(), environ);
  }

 private:
  posix_spawnattr_t attributes_;
  posix_spawn_file_actions_t actions_;
};

// Waits for the end of the child without reaping it, so that its number stays its own.
void AwaitEnd(pid_t pid) {
  siginfo_t info;
  while (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
  }
}

}  // namespace

absl::StatusOr<ExitStatus> RunInForeground(const std::vector<std::string>& argv,
                                           Interrupt* interrupt) {
  std::atomic<pid_t> child = 0;
  const auto end = [&child] {
    if (child != 0) kill(child, SIGTERM);
  };
  {
    const Interrupt::Scope scope(interrupt, end);
    pid_t pid = 0;
    if (const int failure = Settings().Spawn(argv, &pid); failure != 0) {
      const absl::Status status = absl::ErrnoToStatus(failure, argv[0]);
      return WithMessage(status, absl::StrCat(status.message(), "; install it beside nsactl"));
    }
    child = pid;
    if (interrupt->raised()) end();  // while the child was being started
    AwaitEnd(pid);
  }
  NSA_ASSIGN_OR_RETURN(const std::optional<ExitStatus> exit, TryReap(child));
  return exit.value_or(ExitStatus());
}

}  // namespace nsa::client
