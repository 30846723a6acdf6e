// The current directory, where relative paths of a command line and of a job file start.
#pragma once

#include <filesystem>

#include "absl/status/statusor.h"

namespace nsa {

// FailedPrecondition, with what to do, if it has been deleted or cannot be read.
absl::StatusOr<std::filesystem::path> CurrentFolder();

}  // namespace nsa
