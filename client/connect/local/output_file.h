// Files that commands write with -o.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace nsa::client {

// Replaces the content of a file, which may also be a device such as /dev/stdout. InvalidArgument
// if it cannot be written.
absl::Status WriteOutputFile(const std::string& path, const std::string& text);

}  // namespace nsa::client
