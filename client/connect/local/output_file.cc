#include "client/connect/local/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/run/output_file.h"

namespace nsa::client {

absl::Status WriteOutputFile(const std::string& path, const std::string& text) {
  const absl::Status status = nsa::WriteOutputFile(path, text);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(
      status.message(), absl::IsResourceExhausted(status) ? "" : "; name a file that can with -o"));
}

absl::Status CheckOutputFile(const std::string& argument, const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const bool there = fs::exists(path, error);
  const fs::path folder = fs::path(path).parent_path();
  const std::string place = there ? path : folder.empty() ? "." : folder.string();
  std::string why;
  if (access(place.c_str(), W_OK) != 0) {
    why = std::strerror(errno);
  } else if (there && fs::is_directory(path, error)) {
    why = "a folder";
  }
  if (why.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(argument, ": ", path, " (", why, "); name a file that you can write"));
}

}  // namespace nsa::client
