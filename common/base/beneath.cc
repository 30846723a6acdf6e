#include "common/base/beneath.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace nsa {
namespace {

absl::Status Exchanged(const std::filesystem::path& path) {
  return absl::FailedPreconditionError(
      absl::StrCat(path.string(),
                   ": leads through a symbolic link, or is no regular file (neither is followed); "
                   "put the file back"));
}

// Returns `fd` if it is a file or a folder. `error` is the errno of the call that opened it.
absl::StatusOr<Fd> CheckOpened(Fd fd, int error, const std::filesystem::path& path) {
  // ENXIO: a pipe without a reader.
  if (!fd.valid() && (error == ELOOP || error == EXDEV || error == ENXIO)) return Exchanged(path);
  if (!fd.valid()) return absl::ErrnoToStatus(error, path.string());
  struct stat info {};
  if (fstat(fd.get(), &info) == 0 && (S_ISREG(info.st_mode) || S_ISDIR(info.st_mode))) return fd;
  return Exchanged(path);
}

}  // namespace

absl::StatusOr<Fd> OpenBeneath(const std::filesystem::path& root,
                               const std::filesystem::path& inner, int flags, int mode) {
  const std::filesystem::path whole = root / inner;
  const Fd root_fd(open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root_fd.valid()) return absl::ErrnoToStatus(errno, root.string());
  open_how how{};
  how.flags = static_cast<unsigned>(flags | O_CLOEXEC) | ((flags & O_PATH) != 0 ? 0 : O_NONBLOCK);
  how.mode = (flags & O_CREAT) != 0 ? static_cast<unsigned>(mode) : 0;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
  Fd fd(static_cast<int>(syscall(SYS_openat2, root_fd.get(), inner.c_str(), &how, sizeof(how))));
  return CheckOpened(std::move(fd), errno, whole);
}

absl::StatusOr<Fd> OpenIn(int folder, const std::filesystem::path& path, int flags, int mode) {
  Fd fd(openat(folder, path.filename().c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, mode));
  // ENOTDIR: with O_DIRECTORY, `path` is a link or a file.
  const int error = errno == ENOTDIR ? ELOOP : errno;
  return CheckOpened(std::move(fd), error, path);
}

absl::Status RemoveBeneath(const std::filesystem::path& root, const std::filesystem::path& inner) {
  const std::filesystem::path parent = inner.has_parent_path() ? inner.parent_path() : ".";
  NSA_ASSIGN_OR_RETURN(const Fd folder, OpenBeneath(root, parent, O_PATH));
  if (unlinkat(folder.get(), inner.filename().c_str(), 0) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, (root / inner).string());
}

}  // namespace nsa
