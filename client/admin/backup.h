// nsactl admin backup and restore: copies of a coordinator's state folder.
#pragma once

#include "client/cli.h"

namespace nsa::client {

// Adds both commands to the group `admin`.
void AddBackup(Cli* cli, const Options& admin);

}  // namespace nsa::client
