#include "worker/train/data/prepared/staging.h"

#include <fcntl.h>
#include <stdio.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/durable_folder.h"
#include "common/base/status.h"
#include "common/job/data/prepared.h"

namespace nsa::train {
namespace {

namespace fs = std::filesystem;

constexpr char kLock[] = ".lock";

bool IsEmptyOrNew(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(folder, error))) return true;
  return fs::is_directory(folder, error) && fs::is_empty(folder, error) && !error;
}

absl::Status CheckTarget(const fs::path& target) {
  std::error_code error;
  const bool ours = fs::is_regular_file(target / kPreparedJob, error);
  if (IsEmptyOrNew(target) || ours) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(target.string(),
                   ": exists (a new or empty folder, or one of `nsactl data prepare`, which is "
                   "replaced); name another one"));
}

// Removes what a killed process left.
absl::Status Clear(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->path().filename() == kLock) continue;
    std::error_code failed;
    fs::remove_all(at->path(), failed);
    if (failed) return absl::ErrnoToStatus(failed.value(), at->path().string());
  }
  return error ? absl::ErrnoToStatus(error.value(), folder.string()) : absl::OkStatus();
}

}  // namespace

Staging::Staging(fs::path target, fs::path path, FileLock lock)
    : target_(std::move(target)), path_(std::move(path)), lock_(std::move(lock)) {}

Staging::Staging(Staging&& other) noexcept
    : target_(std::move(other.target_)),
      path_(std::exchange(other.path_, fs::path())),
      lock_(std::move(other.lock_)) {}

Staging::~Staging() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

absl::StatusOr<Staging> Staging::Create(const fs::path& out) {
  std::error_code error;
  fs::path target = fs::absolute(out, error).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();
  NSA_RETURN_IF_ERROR(CheckTarget(target));
  NSA_RETURN_IF_ERROR(MakeDurableFolder(target.parent_path()));
  const fs::path path = target.string() + ".partial";
  if (!IsEmptyOrNew(path) && !fs::exists(path / kLock, error)) {
    return absl::FailedPreconditionError(absl::StrCat(
        path.string(), ": exists (a folder that a killed `nsactl data prepare` left); remove it"));
  }
  fs::create_directory(path, error);
  if (error) return absl::ErrnoToStatus(error.value(), path.string());
  absl::StatusOr<FileLock> lock = FileLock::Take(path / kLock);
  if (absl::IsAlreadyExists(lock.status())) {
    return absl::FailedPreconditionError(absl::StrCat(path.string(), ": is being written by ",
                                                      lock.status().message(), "; wait for it"));
  }
  NSA_RETURN_IF_ERROR(lock.status());
  NSA_RETURN_IF_ERROR(Clear(path));
  return Staging(std::move(target), path, *std::move(lock));
}

absl::Status Staging::Publish() {
  std::error_code error;
  fs::remove(path_ / kLock, error);
  NSA_RETURN_IF_ERROR(SyncFolder(path_));
  NSA_RETURN_IF_ERROR(CheckTarget(target_));
  if (IsEmptyOrNew(target_)) {
    fs::rename(path_, target_, error);
    if (error) return absl::ErrnoToStatus(error.value(), target_.string());
    path_.clear();
  } else {
    NSA_RETURN_IF_ERROR(Exchange());
  }
  return SyncFolder(target_.parent_path());
}

// Afterwards path_ is the old folder, which the destructor removes.
absl::Status Staging::Exchange() {
  if (renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) == 0) {
    return absl::OkStatus();
  }
  if (errno != EINVAL && errno != ENOSYS) return absl::ErrnoToStatus(errno, target_.string());
  std::error_code error;
  fs::remove_all(target_, error);
  if (!error) fs::rename(path_, target_, error);
  if (error) return absl::ErrnoToStatus(error.value(), target_.string());
  path_.clear();
  return absl::OkStatus();
}

}  // namespace nsa::train
