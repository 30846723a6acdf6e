#pragma once

#include <string_view>

namespace nsa {

// Whether a path is a pattern: it has a character that stands for others.
inline bool HasWildcard(std::string_view path) {
  return path.find_first_of("*?[") != std::string_view::npos;
}

}  // namespace nsa
