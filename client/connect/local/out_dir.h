// The folder of a job that a command submitted for itself.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace nsa::client {

// Removes `folder`, the out_dir of a job that has ended and whose name this program made up. An
// error, which begins with the folder, if it stays: NotFound if it is not on this machine.
absl::Status RemoveOutDir(const std::string& folder);

}  // namespace nsa::client
