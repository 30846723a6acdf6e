#include "common/base/durable_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/fd.h"

namespace nsa {

absl::Status SyncFolder(const std::filesystem::path& folder) {
  const Fd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, folder.string());
  if (fsync(fd.get()) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat(folder.string(), ": fsync"));
}

absl::Status MakeDurableFolder(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  // The canonical path has no links or dots, so its parents are the folders that contain the names.
  std::filesystem::path folder;
  if (!error) folder = std::filesystem::canonical(path, error);
  if (error) return absl::ErrnoToStatus(error.value(), path.string());
  while (folder.has_relative_path()) {
    folder = folder.parent_path();
    if (access(folder.c_str(), R_OK | W_OK) != 0) break;
    if (absl::Status status = SyncFolder(folder); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace nsa
