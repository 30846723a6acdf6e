// Files that commands write.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace nsa::client {

// Replaces a file as a whole, or writes to a device such as /dev/stdout (common/run/output_file.h).
// InvalidArgument if it cannot be written.
absl::Status WriteOutputFile(const std::string& path, const std::string& text);

// Whether this user can write `path`: the file, or its folder if it is not there. It is not
// opened. InvalidArgument if not; `argument` is what the user gave the path to, e.g. "--csv".
absl::Status CheckOutputFile(const std::string& argument, const std::string& path);

}  // namespace nsa::client
