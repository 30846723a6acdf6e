#include "worker/train/data/cache/entry_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace nsa::train {
namespace {

// Whether the name still leads to the open file: the lock's holder may have deleted the file.
bool IsAt(int fd, const std::filesystem::path& path) {
  struct stat open_file {
  }, named{};
  return fstat(fd, &open_file) == 0 && stat(path.c_str(), &named) == 0 &&
         open_file.st_dev == named.st_dev && open_file.st_ino == named.st_ino;
}

}  // namespace

absl::StatusOr<EntryLock> EntryLock::Lock(const std::filesystem::path& path, int flags,
                                          int operation) {
  constexpr int kAttempts = 100;  // each time somebody deletes the file between two calls
  for (int i = 0; i < kAttempts; ++i) {
    Fd file(open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.valid()) return absl::ErrnoToStatus(errno, path.string());
    if (flock(file.get(), operation | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK)
        return absl::AlreadyExistsError(absl::StrCat(path.string(), ": is locked"));
      return absl::ErrnoToStatus(errno, absl::StrCat(path.string(), ": flock"));
    }
    if (IsAt(file.get(), path)) return EntryLock(std::move(file));
  }
  return absl::AlreadyExistsError(absl::StrCat(path.string(), ": is deleted again and again"));
}

absl::StatusOr<EntryLock> EntryLock::Take(const std::filesystem::path& path) {
  return Lock(path, O_RDWR | O_CREAT, LOCK_EX);
}

absl::StatusOr<EntryLock> EntryLock::TakeExisting(const std::filesystem::path& path) {
  return Lock(path, O_RDWR, LOCK_EX);
}

absl::StatusOr<EntryLock> EntryLock::Share(const std::filesystem::path& path) {
  return Lock(path, O_RDONLY, LOCK_SH);
}

}  // namespace nsa::train
