// C++ stacks of all threads of another process, from outside.
//
// Each thread is held for about a tenth of a millisecond (PTRACE_SEIZE and PTRACE_INTERRUPT), its
// registers and its stack are copied, and it goes on; frames are unwound and named afterwards from
// the copies. Nothing is ever pending in the process: when this program is killed at any moment,
// the kernel lets the thread go on, and a process that was stopped stays stopped. Works on running,
// stopped (T) and deadlocked processes; a thread that the kernel does not give up (state D) is
// described by what /proc says of it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>

#include "absl/status/status.h"

namespace nsa::agent {

struct StackDumpOptions {
  pid_t pid = 0;
  int64_t start_ticks = 0;            // 0: whoever has the pid
  std::filesystem::path status_page;  // empty: none
  std::filesystem::path output;       // empty: standard output
};

// Writes the dump thread by thread, so that what was found before a deadline is there. NotFound
// without the process (or when the pid is another's now), PermissionDenied when it may not be
// traced; what /proc says is then written all the same.
absl::Status DumpStacks(const StackDumpOptions& options);

}  // namespace nsa::agent
