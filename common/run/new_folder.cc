#include "common/run/new_folder.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/durable_folder.h"
#include "common/base/status.h"
#include "common/base/write.h"

namespace nsa {

namespace fs = std::filesystem;

namespace {

constexpr char kUnfinished[] = ".nsa-unfinished-";
constexpr size_t kRandomLetters = 6;
constexpr auto kLeftAfter = std::chrono::hours(1);

// An exclusive lock of a folder; invalid if another process holds it, or if the file system has no
// such locks.
Fd LockOf(const fs::path& folder) {
  Fd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (fd.valid() && flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return Fd();
  return fd;
}

bool IsLeft(const fs::path& folder) {
  const std::string name = folder.filename();
  const size_t at = name.rfind(kUnfinished);
  if (at == std::string::npos || at + strlen(kUnfinished) + kRandomLetters != name.size()) {
    return false;
  }
  std::error_code error;
  const auto written = fs::last_write_time(folder, error);
  return !error && fs::file_time_type::clock::now() - written > kLeftAfter &&
         LockOf(folder).valid();
}

void RemoveLeft(const fs::path& parent) {
  std::error_code error;
  std::vector<fs::path> left;
  for (fs::directory_iterator at(parent, error), end; !error && at != end; at.increment(error)) {
    if (IsLeft(at->path())) left.push_back(at->path());
  }
  for (const fs::path& folder : left) fs::remove_all(folder, error);
}

}  // namespace

NewFolder::NewFolder(fs::path target, fs::path path, Fd lock)
    : target_(std::move(target)), path_(std::move(path)), lock_(std::move(lock)) {}

NewFolder::NewFolder(NewFolder&& other) noexcept
    : target_(std::move(other.target_)),
      path_(std::exchange(other.path_, fs::path())),
      lock_(std::move(other.lock_)) {}

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
    return absl::FailedPreconditionError(
        absl::StrCat(target.string(), ": exists (must be new or empty); name another one"));
  }
  NSA_RETURN_IF_ERROR(MakeDurableFolder(path.parent_path()));
  RemoveLeft(path.parent_path());
  std::string name = absl::StrCat(path.string(), kUnfinished, std::string(kRandomLetters, 'X'));
  if (mkdtemp(name.data()) == nullptr) return WriteError(errno, name);
  fs::permissions(name, fs::perms(0755), error);
  return NewFolder(std::move(path), name, LockOf(name));
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
