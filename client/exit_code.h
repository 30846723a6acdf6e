// The exit codes of nsactl. Scripts rely on these numbers; `nsactl --help` and docs/commands.md
// list them.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace nsa::client {

enum class ExitCode : int {
  kOk = 0,            // done; a watched job succeeded or was stopped as requested
  kFailed = 1,        // a watched job failed, a checkpoint does not verify, or an internal error
  kUsage = 2,         // wrong usage, an error in the job file, or refused by preflight
  kNotFound = 3,      // no such job, checkpoint, rank or context
  kUnreachable = 4,   // no coordinator answered
  kAuth = 5,          // token or certificate missing or refused
  kPrecondition = 6,  // not possible in this state or version, or no machine fits
  kTimeout = 7,       // no answer within --timeout
  kInterrupted = 130  // Ctrl-C, or a change was not confirmed
};

// The exit code of an error.
ExitCode ExitCodeOf(const absl::Status& status);

// One line per exit code, for --help.
std::string ExitCodeHelp();

}  // namespace nsa::client
