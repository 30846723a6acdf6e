#include "worker/agent/dump/stack_dump.h"

#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/run/atomic_file.h"
#include "common/run/process.h"
#include "common/run/status_page.h"
#include "worker/agent/dump/thread_snapshot.h"
#include "worker/agent/dump/unwinder.h"

namespace nsa::agent {
namespace {

constexpr absl::Duration kThreadPatience = absl::Milliseconds(200);  // time for one thread to stop

// A text stream that is flushed after each Write().
class Output {
 public:
  static absl::StatusOr<Output> Open(const std::filesystem::path& path) {
    if (path.empty()) return Output(stdout);
    std::FILE* const file = std::fopen(path.c_str(), "we");
    if (file == nullptr) return absl::ErrnoToStatus(errno, "dump: open " + path.string());
    return Output(file);
  }
  void Write(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), file_);
    std::fflush(file_);
  }

 private:
  explicit Output(std::FILE* file) : file_(file) {}
  std::FILE* file_;  // Closed when the program ends.
};

// Real-time priority, if the user is allowed to set it, while threads are held. Without it, on a
// machine whose cores are all busy, a held thread stays held until this program is scheduled.
class Urgency {
 public:
  Urgency() { Set(SCHED_RR, 1); }
  ~Urgency() { Set(SCHED_OTHER, 0); }
  Urgency(const Urgency&) = delete;
  Urgency& operator=(const Urgency&) = delete;

 private:
  static void Set(int policy, int priority) {
    const sched_param parameters = {.sched_priority = priority};
    sched_setscheduler(0, policy, &parameters);
  }
};

// Takes all copies first, so that they are close in time. The slow unwinding follows when all
// threads run again.
std::vector<ThreadSnapshot> SnapshotAll(pid_t pid) {
  const Urgency urgency;
  std::vector<ThreadSnapshot> threads;
  for (const pid_t tid : ThreadsOf(pid)) threads.push_back(TakeSnapshot(pid, tid, kThreadPatience));
  return threads;
}

std::string Header(const StackDumpOptions& options, char state, size_t threads) {
  const std::string arguments =
      ReadWholeFile(absl::StrFormat("/proc/%d/cmdline", options.pid)).value_or("");
  std::string text = absl::StrFormat("process %d: %s\nstate %c, %d threads\n", options.pid,
                                     std::string(absl::StripAsciiWhitespace(absl::StrReplaceAll(
                                         arguments, {{std::string(1, '\0'), " "}}))),
                                     state, threads);
  if (options.status_page.empty()) return text;
  const absl::StatusOr<WorkerStatus> status = ReadStatusPage(options.status_page);
  const int64_t now = absl::ToInt64Nanoseconds(RealClock().Monotonic());
  absl::StrAppend(
      &text, status.ok() ? status->ToString(now) : std::string(status.status().message()), "\n");
  return text;
}

std::string Heading(const ThreadSnapshot& thread) {
  std::string text =
      absl::StrFormat("\nthread %d \"%s\" state %c", thread.tid, thread.name, thread.state);
  if (!thread.waits.empty()) absl::StrAppend(&text, " in ", thread.waits);
  return text + "\n";
}

std::string FrameLine(size_t number, const StackFrame& frame) {
  std::string text = absl::StrFormat("  #%-2d %016x  ", number, frame.address);
  absl::StrAppend(&text, frame.function.empty() ? "??" : frame.function);
  if (frame.inlined) absl::StrAppend(&text, " (inlined)");
  if (!frame.source.empty()) {
    absl::StrAppend(&text, " at ", frame.source);
  } else {
    absl::StrAppend(&text, " in ", frame.module.empty() ? "no file" : frame.module);
  }
  return text + "\n";
}

std::string Describe(pid_t pid, const ThreadSnapshot& thread,
                     const absl::StatusOr<std::unique_ptr<Unwinder>>& unwinder) {
  const absl::Status& status = thread.status.ok() ? unwinder.status() : thread.status;
  if (!status.ok()) {
    return absl::StrCat(Heading(thread), "  no stack: ", status.message(), "\n",
                        DescribeFromProc(pid, thread.tid));
  }
  std::string text = Heading(thread);
  const std::vector<StackFrame> frames = (*unwinder)->Unwind(thread);
  for (size_t i = 0; i < frames.size(); ++i) {
    if (frames[i].searched) {
      absl::StrAppend(&text,
                      "  (no unwind information here; its callers were searched for on the "
                      "stack, and the first may be an earlier call)\n");
    }
    absl::StrAppend(&text, FrameLine(i, frames[i]));
  }
  return text;
}

}  // namespace

absl::Status DumpStacks(const StackDumpOptions& options) {
  unsetenv("DEBUGINFOD_URLS");  // libdwfl must not download debug files.
  const absl::Duration start = RealClock().Monotonic();
  NSA_ASSIGN_OR_RETURN(const ProcessIdentity identity, IdentityOf(options.pid));
  if (options.start_ticks != 0 && identity.start_ticks != options.start_ticks) {
    return absl::NotFoundError(
        absl::StrFormat("process %d: another process has this pid now", options.pid));
  }
  NSA_ASSIGN_OR_RETURN(Output output, Output::Open(options.output));
  const char state_before = ProcessState(identity);
  const std::vector<ThreadSnapshot> threads = SnapshotAll(options.pid);
  output.Write(Header(options, state_before, threads.size()));
  const absl::StatusOr<std::unique_ptr<Unwinder>> unwinder = Unwinder::Create(options.pid);

  absl::Status worst = unwinder.status();
  absl::Duration longest;
  for (const ThreadSnapshot& thread : threads) {
    output.Write(Describe(options.pid, thread, unwinder));
    longest = std::max(longest, thread.held);
    if (!thread.status.ok() && !absl::IsNotFound(thread.status)) worst = thread.status;
  }
  output.Write(absl::StrFormat(
      "\n%d threads in %.3f s; none was held for more than %.3f ms; state %c before, %c after\n",
      threads.size(), absl::ToDoubleSeconds(RealClock().Monotonic() - start),
      absl::ToDoubleMilliseconds(longest), state_before, ProcessState(identity)));
  return worst;
}

}  // namespace nsa::agent
