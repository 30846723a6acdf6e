#include "client/commands/model/run_program.h"

#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <cerrno>
#include <optional>

#include "absl/strings/str_cat.h"
#include "client/connect/local/local_worker.h"
#include "common/base/status.h"

namespace nsa::client {
namespace {

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
    SpawnOptions options;
    options.argv = argv;
    options.foreground = true;
    const absl::StatusOr<ProcessIdentity> started = Spawn(options);
    if (!started.ok()) {
      return WithMessage(started.status(),
                         absl::StrCat(started.status().message(), "; install it beside nsactl"));
    }
    child = started->pid;
    if (interrupt->raised()) end();  // while the child was being started
    AwaitEnd(child);
  }
  NSA_ASSIGN_OR_RETURN(const std::optional<ExitStatus> exit, TryReap(child));
  return exit.value_or(ExitStatus());
}

absl::StatusOr<ExitCode> RunWorkerInForeground(Session& session, std::vector<std::string> arguments,
                                               const std::string& program) {
  arguments.insert(arguments.begin(), WorkerBesideThisProgram(program));
  session.out().flush();
  NSA_ASSIGN_OR_RETURN(const ExitStatus exit, RunInForeground(arguments, &session.interrupt()));
  // A terminal sends Ctrl-C to both programs, and the worker may be the first to end.
  if (session.interrupt().raised() || exit.signal == SIGINT) return ExitCode::kInterrupted;
  if (exit.signal != 0) {
    return absl::InternalError(absl::StrCat(program, ": ended by signal ", exit.signal));
  }
  if (exit.code == 2) return ExitCode::kUsage;
  return exit.code == 0 ? ExitCode::kOk : ExitCode::kFailed;
}

absl::Status RefuseStructured(const Session& session, const char* command) {
  if (!session.structured()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("-o: json or yaml (must be table); ", command, " prints plain text"));
}

}  // namespace nsa::client
