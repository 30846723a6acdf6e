// Prints the C++ stacks of all threads of another process.
//
// Each thread is held for about a tenth of a millisecond (PTRACE_SEIZE and PTRACE_INTERRUPT) while
// its registers and its stack are copied; then it continues. Frames are unwound and named
// afterwards, from the copies. No signal is left pending in the process: when this program is
// killed at any moment, the kernel lets the thread continue, and a process that was stopped stays
// stopped. Works on running, stopped (T) and deadlocked processes. A thread that cannot be
// interrupted (state D) is described from /proc instead.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>

#include "absl/status/status.h"

namespace nsa::agent {

struct StackDumpOptions {
  pid_t pid = 0;
  int64_t start_ticks = 0;            // 0: any process with this pid
  std::filesystem::path status_page;  // empty: none
  std::filesystem::path output;       // empty: standard output
};

// Writes the dump thread by thread, so that after a timeout the finished part is there. NotFound
// when there is no such process, or when another process has the pid now. PermissionDenied when the
// process may not be traced; what /proc says is written even then.
absl::Status DumpStacks(const StackDumpOptions& options);

}  // namespace nsa::agent
