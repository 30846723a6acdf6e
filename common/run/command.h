// Runs a program to its end, with a time limit, and keeps what it prints.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/run/process.h"

namespace nsa {

struct Command {
  std::vector<std::string> argv;                   // argv[0] is the program's path; no shell
  std::map<std::string, std::string> environment;  // the complete environment
  std::string input;                               // its standard input
  absl::Duration limit = absl::Seconds(30);
  size_t printed_bytes = 4 << 10;  // that are kept of each of its two outputs
};

struct CommandEnd {
  // Empty: it was killed, because its time was up or `cancelled` became true.
  std::optional<ExitStatus> exit;
  bool immortal = false;  // with an empty exit: it could not be killed
  std::string output;     // what it printed on standard output
  std::string errors;     // and on standard error
};

// Starts it by posix_spawn in a session of its own, without other descriptors, and waits until it
// ends. After `limit`, or when `cancelled` becomes true, it is killed together with what it started
// (5 s are enough, or it is left). What it prints beyond printed_bytes is lost, and fills no
// memory. Safe in a process with threads of gRPC. No SIGPIPE is raised: nothing is a pipe. Error:
// it could not be started.
absl::StatusOr<CommandEnd> RunCommand(const Command& command, const std::atomic<bool>& cancelled);

}  // namespace nsa
