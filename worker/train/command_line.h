// What the parts of nsa-worker's command line have in common.
#pragma once

#include "absl/status/status.h"

namespace nsa::train {

// The exit code after a wrong command line or job.
inline constexpr int kUsage = 2;

// nsa-worker or nsa-worker-cuda.
const char* ProgramName();

// Prints the error after the program's name and returns the exit code: kUsage, or 1.
int Refuse(const absl::Status& status);
int Fail(const absl::Status& status);

}  // namespace nsa::train
