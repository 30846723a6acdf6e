// Paths of a command line, for messages and for other programs.
#pragma once

#include <filesystem>
#include <string>

namespace nsa::client {

// The path from the root, without `.` and `..`; links are not resolved.
inline std::string Absolute(const std::string& path) {
  std::error_code error;
  return std::filesystem::absolute(path, error).lexically_normal().string();
}

}  // namespace nsa::client
