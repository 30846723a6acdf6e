// A thread's registers and stack, copied while it was held for a moment.
#pragma once

#include <sys/types.h>
#include <sys/user.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace nsa::agent {

struct ThreadSnapshot {
  pid_t tid = 0;
  std::string name;                        // /proc/PID/task/TID/comm
  char state = '?';                        // before it was held
  std::string waits;                       // kernel function it sleeps in, or empty
  absl::Status status = absl::OkStatus();  // why there are no registers
  user_regs_struct registers = {};
  uint64_t stack_begin = 0;  // address of stack[0]: a little below the stack pointer
  std::string stack;
  absl::Duration held;  // from the notice that it had stopped until it was let go
};

// Threads of a process, ascending. Empty when it is gone.
std::vector<pid_t> ThreadsOf(pid_t pid);

// Holds one thread, copies and lets go. The thread's stack is copied up to 256 KiB. Waits at most
// `patience` for the thread to stop: DeadlineExceeded for one in state D, PermissionDenied when it
// may not be traced, NotFound when it has ended.
ThreadSnapshot TakeSnapshot(pid_t pid, pid_t tid, absl::Duration patience);

// Lines of /proc/PID/task/TID about a thread whose stack could not be had: state, kernel function,
// system call and kernel stack, each with why it could not be read where it could not.
std::string DescribeFromProc(pid_t pid, pid_t tid);

// State letter of a thread of /proc, '?' when it is gone.
char ThreadState(pid_t pid, pid_t tid);

}  // namespace nsa::agent
