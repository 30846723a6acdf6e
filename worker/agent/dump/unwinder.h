// Names for the frames of copied stacks: unwinds by the call frame information of the programs'
// files, without looking at the process again, and reads of each module on a stack its symbols and
// line table only.
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
  bool inlined = false;  // into the next one
  std::string function;  // demangled; empty when unknown
  std::string source;    // "worker/train/step/trainer.cc:120"; empty when unknown
  std::string module;    // file name of the program or library; empty when in none
};

// Not thread-safe.
class Unwinder {
 public:
  // Unavailable when its mappings, which are read now, cannot be had.
  static absl::StatusOr<std::unique_ptr<Unwinder>> Create(pid_t pid);
  ~Unwinder();

  // Innermost first, at most 128 addresses. Empty when not even the first could be told.
  std::vector<StackFrame> Unwind(const ThreadSnapshot& snapshot);

 private:
  struct State;
  explicit Unwinder(std::unique_ptr<State> state);
  const std::unique_ptr<State> state_;
};

}  // namespace nsa::agent
