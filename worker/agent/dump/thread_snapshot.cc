#include "worker/agent/dump/thread_snapshot.h"

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/base/clock.h"
#include "common/run/atomic_file.h"

namespace nsa::agent {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxStack = 256 << 10;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kRedZone = 128;  // leaf functions keep data below the stack pointer
constexpr int kEventStop = 128;     // PTRACE_EVENT_STOP, which sys/ptrace.h does not name

std::string TaskFile(pid_t pid, pid_t tid, const char* name) {
  return absl::StrFormat("/proc/%d/task/%d/%s", pid, tid, name);
}

std::string ReadLine(pid_t pid, pid_t tid, const char* name) {
  const absl::StatusOr<std::string> text = ReadWholeFile(TaskFile(pid, tid, name));
  return text.ok() ? std::string(absl::StripAsciiWhitespace(*text)) : "";
}

absl::Status PtraceError(const char* what, int error) {
  if (error == ESRCH) return absl::NotFoundError("the thread has ended");
  if (error == EPERM) {
    const std::string scope =
        ReadWholeFile("/proc/sys/kernel/yama/ptrace_scope").value_or("absent");
    return absl::PermissionDeniedError(absl::StrFormat(
        "%s: not permitted (another user's process, a tracer is attached, a container without "
        "CAP_SYS_PTRACE, or Yama; ptrace_scope %s)",
        what, std::string(absl::StripAsciiWhitespace(scope))));
  }
  return absl::ErrnoToStatus(error, what);
}

sigset_t ChildSignal() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  return set;
}

// Waits for the interrupted thread to stop. `signal` is set to the signal that was about to be
// delivered, or 0: the thread must get it when it is released.
absl::Status AwaitStop(pid_t tid, absl::Duration deadline, int* signal) {
  *signal = 0;
  while (true) {
    int status = 0;
    const pid_t changed = waitpid(tid, &status, WNOHANG | __WALL);
    if (changed < 0 && errno != EINTR) return PtraceError("waitpid", errno);
    if (changed == tid && !WIFSTOPPED(status)) return absl::NotFoundError("the thread has ended");
    if (changed == tid) {
      if (status >> 16 != kEventStop) *signal = WSTOPSIG(status);
      return absl::OkStatus();
    }
    const absl::Duration left = deadline - RealClock().Monotonic();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          "the thread does not stop: it is in a kernel call that cannot be interrupted");
    }
    const timespec timeout = absl::ToTimespec(left);
    const sigset_t child = ChildSignal();
    sigtimedwait(&child, nullptr, &timeout);  // SIGCHLD also reports stops of traced threads.
  }
}

// Reads page by page: process_vm_readv() stops before the first page that is not mapped. So the end
// of the stack need not be looked up while the thread is held.
size_t CopyStack(pid_t pid, uint64_t begin, std::string* stack) {
  std::vector<iovec> pages;
  const uint64_t end = begin + kMaxStack;
  for (uint64_t at = begin; at < end;) {
    const uint64_t next = std::min(end, (at / kPage + 1) * kPage);
    pages.push_back({reinterpret_cast<void*>(at), next - at});
    at = next;
  }
  const iovec local = {stack->data(), kMaxStack};
  const ssize_t n = process_vm_readv(pid, &local, 1, pages.data(), pages.size(), 0);
  return n > 0 ? static_cast<size_t>(n) : 0;
}

absl::Status Copy(pid_t pid, ThreadSnapshot* out) {
  if (ptrace(PTRACE_GETREGS, out->tid, nullptr, &out->registers) != 0) {
    return PtraceError("registers", errno);
  }
  out->stack_begin = out->registers.rsp - kRedZone;
  out->stack.resize(CopyStack(pid, out->stack_begin, &out->stack));
  return absl::OkStatus();
}

}  // namespace

std::vector<pid_t> ThreadsOf(pid_t pid) {
  std::vector<pid_t> threads;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(absl::StrFormat("/proc/%d/task", pid), error)) {
    pid_t tid = 0;
    if (absl::SimpleAtoi(entry.path().filename().string(), &tid)) threads.push_back(tid);
  }
  std::sort(threads.begin(), threads.end());
  return threads;
}

char ThreadState(pid_t pid, pid_t tid) {
  const std::string stat = ReadLine(pid, tid, "stat");
  const size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && name_end + 2 < stat.size() ? stat[name_end + 2] : '?';
}

ThreadSnapshot TakeSnapshot(pid_t pid, pid_t tid, absl::Duration patience) {
  ThreadSnapshot out;
  out.tid = tid;
  out.name = ReadLine(pid, tid, "comm");
  out.state = ThreadState(pid, tid);
  out.waits = ReadLine(pid, tid, "wchan");
  if (out.waits == "0") out.waits.clear();
  out.stack.resize(kMaxStack);  // now, not while the thread is held

  const sigset_t child = ChildSignal();
  pthread_sigmask(SIG_BLOCK, &child, nullptr);  // for sigtimedwait()
  // SEIZE and not ATTACH, which sends a SIGSTOP that would stay if this program were killed.
  if (ptrace(PTRACE_SEIZE, tid, nullptr, nullptr) != 0) {
    out.status = PtraceError("ptrace", errno);
    return out;
  }
  const absl::Duration start = RealClock().Monotonic();
  int signal = 0;
  if (ptrace(PTRACE_INTERRUPT, tid, nullptr, nullptr) != 0) {
    out.status = PtraceError("ptrace", errno);
  } else {
    out.status = AwaitStop(tid, start + patience, &signal);
  }
  if (!out.status.ok()) return out;  // The kernel releases the thread when this program ends.
  const absl::Duration stopped = RealClock().Monotonic();
  out.status = Copy(pid, &out);
  // A thread of a stopped process stays stopped.
  ptrace(PTRACE_DETACH, tid, nullptr, reinterpret_cast<void*>(static_cast<intptr_t>(signal)));
  out.held = RealClock().Monotonic() - stopped;
  return out;
}

std::string DescribeFromProc(pid_t pid, pid_t tid) {
  std::string text = absl::StrFormat("  state: %c\n", ThreadState(pid, tid));
  for (const char* const name : {"wchan", "syscall", "stack"}) {
    const absl::StatusOr<std::string> content = ReadWholeFile(TaskFile(pid, tid, name));
    const std::string shown = content.ok()
                                  ? std::string(absl::StripAsciiWhitespace(*content))
                                  : absl::StrCat("not readable (", content.status().message(), ")");
    absl::StrAppend(&text, "  ", name, ": ", absl::StrReplaceAll(shown, {{"\n", "\n    "}}), "\n");
  }
  return text;
}

}  // namespace nsa::agent
