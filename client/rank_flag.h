// The --rank flag of logs, metrics and dump-stack.
#pragma once

#include <string>

#include "CLI/CLI.hpp"

namespace nsa {

// Declares `--rank N|all` into *rank; "all" is -1.
void AddRankFlag(CLI::App* command, const std::string& what, int* rank);

}  // namespace nsa
