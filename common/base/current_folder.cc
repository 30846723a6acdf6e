#include "common/base/current_folder.h"

#include <system_error>

#include "absl/strings/str_cat.h"

namespace nsa {

absl::StatusOr<std::filesystem::path> CurrentFolder() {
  std::error_code error;
  std::filesystem::path folder = std::filesystem::current_path(error);
  if (!error) return folder;
  const bool deleted = error == std::errc::no_such_file_or_directory;
  return absl::FailedPreconditionError(
      absl::StrCat("current directory: ", deleted ? "has been deleted" : error.message(),
                   " (relative paths start there); change to another one"));
}

}  // namespace nsa
