// Numbers in messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nsa {

// Count(1, "rank") is "1 rank", Count(2, "rank") is "2 ranks". The plural of `noun` must end in s.
inline std::string Count(int64_t number, std::string_view noun) {
  return std::to_string(number) + " " + std::string(noun) + (number == 1 ? "" : "s");
}

}  // namespace nsa
