// A check of a flag that takes a whole number.
#pragma once

#include "CLI/CLI.hpp"

namespace nsa {

// Refuses what is not a whole number of at least `least`: "0 (at least 1)".
CLI::Validator AtLeast(int64_t least);

}  // namespace nsa
