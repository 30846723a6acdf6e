// Files that the command line names, looked at before somebody else is asked to read them.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace nsa::client {

// Whether this user can read `path`. It is not opened, because a pipe can be read once only.
// InvalidArgument if not, in the words of the command line: `argument` is what the user gave the
// path to, e.g. "--data"; `wanted` is e.g. "a file".
absl::Status CheckReadable(const std::string& argument, const std::string& path,
                           const std::string& wanted);

// The same for a file or a pipe: a folder is refused too.
absl::Status CheckInputFile(const std::string& argument, const std::string& path);

}  // namespace nsa::client
