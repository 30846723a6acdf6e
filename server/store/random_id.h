// Ids that cannot be guessed.
#pragma once

#include <string>

namespace nsa::server {

// The prefix and 12 random characters of base 32 (a to z, 2 to 7).
std::string RandomId(const std::string& prefix);

}  // namespace nsa::server
