#include "client/connect/local/input_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace nsa::client {
namespace {

absl::Status Unreadable(const std::string& argument, const std::string& path,
                        const std::string& why, const std::string& wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat(argument, ": ", path, " (", why, "); name ", wanted, " that you can read"));
}

}  // namespace

absl::Status CheckReadable(const std::string& argument, const std::string& path,
                           const std::string& wanted) {
  if (access(path.c_str(), R_OK) == 0) return absl::OkStatus();
  return Unreadable(argument, path, std::strerror(errno), wanted);
}

absl::Status CheckInputFile(const std::string& argument, const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return Unreadable(argument, path, "a folder", "a file");
  }
  return CheckReadable(argument, path, "a file");
}

}  // namespace nsa::client
