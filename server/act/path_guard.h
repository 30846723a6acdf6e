// Checks the paths that a job names: they must be absolute and beneath one of the configured roots,
// and must not lead through a symbolic link.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nsa/v1/job.pb.h"

namespace nsa::server {

class PathGuard {
 public:
  // Roots are absolute; The root "/" allows every absolute path and follows symbolic links.
  explicit PathGuard(std::vector<std::filesystem::path> roots) : roots_(std::move(roots)) {}

  // InvalidArgument when the path is not allowed. The path need not exist; the part that exists is
  // resolved by the kernel (openat2, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS).
  absl::Status Check(const std::string& field, const std::string& path) const;

  // out_dir, data and validation files (URLs are not paths), the tokenizer's folder, and the
  // checkpoint to resume from.
  absl::Status CheckSpec(const v1::JobSpec& spec) const;

 private:
  const std::vector<std::filesystem::path> roots_;
};

}  // namespace nsa::server
