// A moment as texts of the services show it: in UTC, to the second.
#pragma once

#include <cstdint>
#include <string>

namespace nsa {

// "2026-11-25T14:00:00Z".
std::string UtcText(int64_t unix_nanos);

}  // namespace nsa
