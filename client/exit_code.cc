#include "client/exit_code.h"

namespace nsa::client {

ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return ExitCode::kOk;
    case absl::StatusCode::kInvalidArgument:
      return ExitCode::kUsage;
    case absl::StatusCode::kNotFound:
      return ExitCode::kNotFound;
    case absl::StatusCode::kUnavailable:
      return ExitCode::kUnreachable;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return ExitCode::kAuth;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
      return ExitCode::kPrecondition;
    case absl::StatusCode::kDeadlineExceeded:
      return ExitCode::kTimeout;
    case absl::StatusCode::kCancelled:
      return ExitCode::kInterrupted;
    default:
      return ExitCode::kFailed;
  }
}

std::string ExitCodeHelp() {
  return "Exit codes:\n"
         "  0    done; a watched job succeeded or was stopped as requested\n"
         "  1    a watched job or a check of doctor failed, a checkpoint does not verify, or an "
         "internal\n"
         "       error\n"
         "  2    wrong usage, an error in the job file, or refused by preflight\n"
         "  3    not found: no such job, checkpoint, rank or context\n"
         "  4    unreachable: no coordinator answered\n"
         "  5    authentication: token or certificate missing or refused\n"
         "  6    precondition: not possible in this state or with this coordinator's version, or\n"
         "       no machine can take the job\n"
         "  7    timeout: no answer within --timeout\n"
         "  130  interrupted by Ctrl-C, or a change was not confirmed\n";
}

}  // namespace nsa::client
