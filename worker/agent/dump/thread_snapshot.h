// Copies the registers and the stack of a thread, which is held only for that moment.
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
  char state = '?';                        // state letter before it was held
  std::string waits;                       // kernel function it sleeps in, or empty
  absl::Status status = absl::OkStatus();  // why there are no registers
  user_regs_struct registers = {};
  uint64_t stack_begin = 0;  // address of stack[0]: a little below the stack pointer
  std::string stack;
  absl::Duration held;  // from noticing that it had stopped to releasing it
};

// Thread ids of a process, ascending. Empty when the process has ended.
std::vector<pid_t> ThreadsOf(pid_t pid);

// Holds one thread, copies its registers and at most 256 KiB of its stack, and releases it. Waits
// at most `patience` for the thread to stop. The snapshot's status is DeadlineExceeded when it does
// not stop (state D), PermissionDenied when it may not be traced, NotFound when it has ended.
ThreadSnapshot TakeSnapshot(pid_t pid, pid_t tid, absl::Duration patience);

// What /proc/PID/task/TID says about a thread whose stack could not be copied: state, kernel
// function, system call and kernel stack. A file that cannot be read is listed with the reason.
std::string DescribeFromProc(pid_t pid, pid_t tid);

// State letter of a thread from /proc; '?' when it has ended.
char ThreadState(pid_t pid, pid_t tid);

}  // namespace nsa::agent
