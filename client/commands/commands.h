// The table of commands.
#pragma once

#include "client/cli.h"

namespace nsa::client {

// Adds every command to `cli`, in the order of `nsactl --help`.
void AddCommands(Cli* cli);

}  // namespace nsa::client
