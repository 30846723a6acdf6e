#include "server/store/state_lock.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/durable_folder.h"

namespace nsa::server {
namespace {

absl::Status MakePrivateFolder(const std::filesystem::path& path) {
  // Jobs are acknowledged once they are on disk, so the folder's own directory entry must be
  // durable too.
  if (const absl::Status status = MakeDurableFolder(path); !status.ok()) {
    return absl::PermissionDeniedError(
        absl::StrCat("state_dir: cannot make ", status.message(), "; choose another one"));
  }
  if (chmod(path.c_str(), 0700) != 0) {
    return absl::PermissionDeniedError(absl::StrCat("state_dir: ", path.string(),
                                                    " does not belong to this user (",
                                                    std::strerror(errno), "); choose another one"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FileLock> LockStateDir(const std::filesystem::path& state_dir) {
  if (const absl::Status status = MakePrivateFolder(state_dir); !status.ok()) return status;
  absl::StatusOr<FileLock> lock = FileLock::Take(state_dir / kStateLockName);
  if (lock.ok()) return lock;
  if (absl::IsAlreadyExists(lock.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat("state_dir: ", state_dir.string(), " is in use by ", lock.status().message(),
                     "; stop that one or choose another --state-dir"));
  }
  if (absl::IsUnimplemented(lock.status())) {
    return absl::FailedPreconditionError(absl::StrCat("state_dir: ", lock.status().message()));
  }
  return absl::PermissionDeniedError(absl::StrCat(lock.status().message(), "; check its owner"));
}

}  // namespace nsa::server
