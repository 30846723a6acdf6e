// Runs a program in the foreground, in place of this one.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/connect/interrupt.h"
#include "common/run/process.h"

namespace nsa::client {

// Runs argv[0], a path, with the other words, and returns how it ended. It has this process's
// standard input, output and error, environment and folder, but no other open file, and signals
// have their default action. When `interrupt` is raised it is asked to end (SIGTERM), and its end
// awaited. NotFound or PermissionDenied, with the program, if it cannot be started.
absl::StatusOr<ExitStatus> RunInForeground(const std::vector<std::string>& argv,
                                           Interrupt* interrupt);

}  // namespace nsa::client
