#include "client/connect/local/out_dir.h"

#include <cstdint>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace nsa::client {

absl::Status RemoveOutDir(const std::string& folder) {
  std::error_code error;
  const std::uintmax_t removed = std::filesystem::remove_all(folder, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat(folder, ": cannot be removed (", error.message(), "); remove it by hand"));
  }
  if (removed > 0) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat(folder, ": not on this machine; remove it where the job ran"));
}

}  // namespace nsa::client
