#include "common/run/new_folder.h"

#include <stdlib.h>

#include <cerrno>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/durable_folder.h"
#include "common/base/status.h"

namespace nsa {

namespace fs = std::filesystem;

NewFolder::NewFolder(fs::path target, fs::path path)
    : target_(std::move(target)), path_(std::move(path)) {}

NewFolder::NewFolder(NewFolder&& other) noexcept
    : target_(std::move(other.target_)), path_(std::exchange(other.path_, fs::path())) {}

NewFolder::~NewFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

absl::StatusOr<NewFolder> NewFolder::Create(const fs::path& target) {
  std::error_code error;
  fs::path path = fs::absolute(target, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const fs::file_status found = fs::symlink_status(path, error);
  if (fs::exists(found) && (!fs::is_directory(found) || !fs::is_empty(path, error))) {
    return absl::FailedPreconditionError(absl::StrCat(
        target.string(), ": exists (a folder that does not exist or is empty); name another one"));
  }
  NSA_RETURN_IF_ERROR(MakeDurableFolder(path.parent_path()));
  std::string name = absl::StrCat(path.string(), ".tmp-XXXXXX");
  if (mkdtemp(name.data()) == nullptr) return absl::ErrnoToStatus(errno, name);
  fs::permissions(name, fs::perms(0755), error);
  return NewFolder(std::move(path), name);
}

absl::Status NewFolder::Publish() {
  NSA_RETURN_IF_ERROR(SyncFolder(path_));
  std::error_code error;
  fs::rename(path_, target_, error);
  if (error) return absl::ErrnoToStatus(error.value(), target_.string());
  path_.clear();
  return SyncFolder(target_.parent_path());
}

}  // namespace nsa
