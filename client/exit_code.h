// What nsactl's exit status means. Scripts rely on these numbers; `nsactl --help` and README.md
// list them.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace nsa::client {

enum class ExitCode : int {
  kOk = 0,            // done; a watched job succeeded or was stopped as asked
  kFailed = 1,        // a watched job failed, a checkpoint does not verify, or a fault of our own
  kUsage = 2,         // bad flags, a job file with mistakes, or preflight refused
  kNotFound = 3,      // no such job, checkpoint, rank or context
  kUnreachable = 4,   // no coordinator answered
  kAuth = 5,          // token or certificate missing or refused
  kPrecondition = 6,  // not in this state, or no machine can take the job
  kTimeout = 7,       // no answer within --timeout
  kInterrupted = 130  // Ctrl-C
};

// The exit status of an error.
ExitCode ExitCodeOf(const absl::Status& status);

// One line a code, for --help.
std::string ExitCodeHelp();

}  // namespace nsa::client
