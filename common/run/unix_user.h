// Names of Unix users as whom ranks may run.
#pragma once

#include <string_view>

namespace nsa {

// 1 to 32 of [a-z0-9_-], beginning with a letter or "_", and not root. So it is never a number,
// which could name any user.
constexpr bool IsUnixUser(std::string_view name) {
  constexpr size_t kLongest = 32;
  if (name.empty() || name.size() > kLongest || name == "root") return false;
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    const bool first = (c >= 'a' && c <= 'z') || c == '_';
    if (!first && (i == 0 || !((c >= '0' && c <= '9') || c == '-'))) return false;
  }
  return true;
}

}  // namespace nsa
