// Unwinds copied stacks and names their frames, with the call frame information in the files of the
// program and its libraries. The process itself is not stopped again. Of each module on a stack
// only the symbols and the line table are read.
//
// elfutils' eu-stack unwinds while it holds a thread: on a machine of two cores it held a thread of
// a training nsa-worker (7 threads) for up to 11 ms, with names and lines (-i -s) for 5 to 17 ms;
// with copies it is 0.05 to 0.07 ms (2026-11-29, five dumps of each).
//
// Functions written in assembly may have no such information, or a wrong one, such as OpenBLAS's
// matrix products. Where a thread is in one, its callers are searched for on the stack: the first
// word that is a return address from which the rest of the stack can be unwound. It may be left
// over from an earlier call, so the dump says that it was searched for.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/agent/dump/thread_snapshot.h"

namespace nsa::agent {

// One function of a stack. Several share an address where calls were inlined.
struct StackFrame {
  uint64_t address = 0;
  bool inlined = false;   // into the next frame of the list
  bool searched = false;  // found on the stack, as the caller of the frame before
  std::string function;   // demangled; empty when unknown
  std::string source;     // "worker/train/step/trainer.cc:120"; empty when unknown
  std::string module;     // file name of the program or library; empty outside of both
};

// Not thread-safe.
class Unwinder {
 public:
  // Reads the memory mappings of the process. Unavailable when they cannot be read.
  static absl::StatusOr<std::unique_ptr<Unwinder>> Create(pid_t pid);
  ~Unwinder();

  // Frames of the stack, innermost first, at most 128 addresses; functions inlined at one of them
  // are added. When the stack cannot be unwound and no callers are found on it, only the frame of
  // the program counter.
  std::vector<StackFrame> Unwind(const ThreadSnapshot& snapshot);

 private:
  struct State;
  explicit Unwinder(std::unique_ptr<State> state);
  const std::unique_ptr<State> state_;
};

}  // namespace nsa::agent
