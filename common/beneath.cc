#include "common/beneath.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace nsa {
namespace {

absl::Status Exchanged(const std::filesystem::path& path) {
  return absl::FailedPreconditionError(
      absl::StrCat(path.string(),
                   ": leads through a symbolic link, or is no regular file (neither is followed); "
                   "put the file back"));
}

// `fd` when it is a file or a folder; `error` is of the call that made it.
absl::StatusOr<int> CheckOpened(int fd, int error, const std::filesystem::path& path) {
  // ENXIO: a pipe that nobody reads.
  if (fd < 0 && (error == ELOOP || error == EXDEV || error == ENXIO)) return Exchanged(path);
  if (fd < 0) return absl::ErrnoToStatus(error, path.string());
  struct stat info {};
  if (fstat(fd, &info) == 0 && (S_ISREG(info.st_mode) || S_ISDIR(info.st_mode))) return fd;
  close(fd);
  return Exchanged(path);
}

}  // namespace

absl::StatusOr<int> OpenBeneath(const std::filesystem::path& root,
                                const std::filesystem::path& inner, int flags, int mode) {
  const std::filesystem::path whole = root / inner;
  const int root_fd = open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (root_fd < 0) return absl::ErrnoToStatus(errno, root.string());
  open_how how{};
  how.flags = static_cast<unsigned>(flags | O_CLOEXEC) | ((flags & O_PATH) != 0 ? 0 : O_NONBLOCK);
  how.mode = (flags & O_CREAT) != 0 ? static_cast<unsigned>(mode) : 0;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
  const auto fd = static_cast<int>(syscall(SYS_openat2, root_fd, inner.c_str(), &how, sizeof(how)));
  const int error = errno;
  close(root_fd);
  return CheckOpened(fd, error, whole);
}

absl::StatusOr<int> OpenIn(int folder, const std::filesystem::path& path, int flags, int mode) {
  const int fd =
      openat(folder, path.filename().c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, mode);
  // ENOTDIR: what a link or a file answers where a folder is wanted.
  return CheckOpened(fd, errno == ENOTDIR ? ELOOP : errno, path);
}

absl::Status RemoveBeneath(const std::filesystem::path& root, const std::filesystem::path& inner) {
  NSA_ASSIGN_OR_RETURN(const int folder, OpenBeneath(root, inner.parent_path(), O_PATH));
  const int removed = unlinkat(folder, inner.filename().c_str(), 0);
  const int error = errno;
  close(folder);
  if (removed != 0) return absl::ErrnoToStatus(error, (root / inner).string());
  return absl::OkStatus();
}

}  // namespace nsa
