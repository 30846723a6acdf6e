// Runs a program in the foreground, in place of this one.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/connect/interrupt.h"
#include "client/connect/session.h"
#include "client/exit_code.h"
#include "common/run/process.h"

namespace nsa::client {

// Runs argv[0], a path, with the other words, and returns how it ended. It has this process's
// standard input, output and error, environment and folder, but no other open file, and signals
// have their default action. When `interrupt` is raised it is asked to end (SIGTERM), and its end
// awaited. NotFound or PermissionDenied, with the program, if it cannot be started.
absl::StatusOr<ExitStatus> RunInForeground(const std::vector<std::string>& argv,
                                           Interrupt* interrupt);

// Runs nsa-worker, or `program`, beside this program like that, with these arguments, and returns
// the exit code of a command that does nothing else: the worker has said why it failed. Internal
// when a signal ended it that the user did not send.
absl::StatusOr<ExitCode> RunWorkerInForeground(Session& session, std::vector<std::string> arguments,
                                               const std::string& program = "nsa-worker");

// InvalidArgument when the user asked for JSON or YAML of a command that prints plain text.
absl::Status RefuseStructured(const Session& session, const char* command);

}  // namespace nsa::client
