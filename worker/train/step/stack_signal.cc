#include "worker/train/step/stack_signal.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/thread_name.h"
#include "common/run/atomic_file.h"
#include "common/run/process.h"

namespace nsa::train {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(10);
constexpr absl::Duration kPoll = absl::Milliseconds(10);

sigset_t StackSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  return signals;
}

// Waits for the child, and kills it when it takes too long or when `give_up`. Killing it does not
// harm this process (worker/agent/dump/stack_dump.h). Returns whether it ended by itself.
bool Await(const ProcessIdentity& child, const std::function<bool()>& give_up) {
  const absl::Duration deadline = RealClock().Monotonic() + kPatience;
  bool killed = false;
  while (true) {
    const absl::StatusOr<std::optional<ExitStatus>> exit = TryReap(child.pid);
    if (!exit.ok() || exit->has_value()) return !killed;
    if (!killed && (RealClock().Monotonic() > deadline || give_up())) {
      killed = true;
      SignalProcess(child, SIGKILL).IgnoreError();
    }
    absl::SleepFor(kPoll);
  }
}

// The stacks, or why there are none. The child writes to memory, so that they come into the log in
// one piece and stderr may be anything.
std::string Stacks(const std::function<bool()>& give_up) {
  std::error_code error;
  const std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "nsa-agent";
  const Fd memory(memfd_create("stacks", MFD_CLOEXEC));
  if (!memory.valid()) return absl::StrCat("no stacks: memfd_create: ", strerror(errno));
  const absl::StatusOr<ProcessIdentity> child =
      Spawn({.argv = {program.string(), "dump", "--pid", absl::StrCat(getpid())},
             .environment = FilterEnvironment({"LD_LIBRARY_PATH"}),
             .output = absl::StrCat("/proc/self/fd/", memory.get())});
  if (!child.ok()) {
    return absl::StrCat("no stacks: ", child.status().message(),
                        "; nsa-agent, which reads them, belongs beside this program");
  }
  const bool ended = Await(*child, give_up);
  lseek(memory.get(), 0, SEEK_SET);
  const std::string text = ReadWholeFile(memory.get(), "stacks").value_or("");
  return ended ? text : text + "\nincomplete: reading the stacks took too long";
}

void WriteToStderr(const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(STDERR_FILENO, text.data() + done, text.size() - done);
    if (n <= 0 && errno != EINTR) return;  // nobody reads it
    if (n > 0) done += static_cast<size_t>(n);
  }
}

}  // namespace

StackSignal::StackSignal() : thread_([this] { Loop(); }) {}

StackSignal::~StackSignal() {
  done_ = true;
  pthread_kill(thread_.native_handle(), SIGUSR1);
  thread_.join();
}

void StackSignal::Loop() {
  NameThread("stack-signal");
  const sigset_t signals = StackSignals();
  while (true) {
    int signal = 0;
    sigwait(&signals, &signal);
    if (done_) return;
    WriteToStderr(absl::StrCat("SIGUSR1: the stacks of all threads; the process goes on\n",
                               Stacks([this] { return done_.load(); }), "\n"));
  }
}

}  // namespace nsa::train
