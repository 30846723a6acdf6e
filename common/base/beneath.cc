#include "common/base/beneath.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace nsa {
namespace {

namespace fs = std::filesystem;

// The functions from here to Resolve() return an invalid Fd and set errno when they fail.

Fd Failed(int error) {
  errno = error;
  return Fd();
}

bool IsLink(int folder, const std::string& name) {
  struct stat info {};
  return fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(info.st_mode);
}

// Opens one part of a path. ELOOP if it is a symbolic link, whatever the flags.
Fd OpenPart(int folder, const std::string& name, int flags, int mode) {
  Fd fd(openat(folder, name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, mode));
  struct stat info {};
  // O_PATH opens the link itself. With O_DIRECTORY a link is ENOTDIR.
  if (fd.valid() && fstat(fd.get(), &info) == 0 && S_ISLNK(info.st_mode)) return Failed(ELOOP);
  if (!fd.valid() && errno == ENOTDIR) return Failed(IsLink(folder, name) ? ELOOP : ENOTDIR);
  return fd;
}

// What openat2() does with RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS, part by part. A part that is
// exchanged meanwhile cannot lead out: each is opened in the folder before it, and ".." goes back
// to a folder that is still open.
Fd Walk(int root, const fs::path& inner, int flags, int mode) {
  std::vector<std::string> parts;
  for (const fs::path& part : inner) parts.push_back(part.string());
  if (parts.empty()) return Failed(ENOENT);
  if (inner.is_absolute()) return Failed(EXDEV);
  if (parts.back().empty()) {  // a slash at the end
    if ((flags & O_CREAT) != 0) return Failed(EISDIR);
    flags |= O_DIRECTORY;
    parts.pop_back();
  }
  // From below the root to where the walk is; only the last one if it never goes back.
  std::vector<Fd> folders;
  const bool goes_back = std::ranges::find(parts, "..") != parts.end();
  const auto here = [&] { return folders.empty() ? root : folders.back().get(); };
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool last = i + 1 == parts.size();
    if (parts[i] == "..") {
      if (folders.empty()) return Failed(EXDEV);
      folders.pop_back();
    } else if (parts[i] != "." && !last) {
      Fd next = OpenPart(here(), parts[i], O_PATH | O_DIRECTORY, 0);
      if (!next.valid()) return next;
      if (!goes_back) folders.clear();
      folders.push_back(std::move(next));
    }
    if (last && (parts[i] == "." || parts[i] == "..")) return OpenPart(here(), ".", flags, mode);
  }
  return OpenPart(here(), parts.back(), flags, mode);
}

// Opens `inner` in the open folder `root` without leaving it and without following a link.
Fd Resolve(int root, const fs::path& inner, int flags, int mode) {
  open_how how{};
  how.flags = static_cast<unsigned>(flags | O_CLOEXEC);
  how.mode = (flags & O_CREAT) != 0 ? static_cast<unsigned>(mode) : 0;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
  Fd fd(static_cast<int>(syscall(SYS_openat2, root, inner.c_str(), &how, sizeof(how))));
  // Linux before 5.6, gVisor, and seccomp filters such as that of systemd's RestrictSUIDSGID=yes,
  // which cannot see the mode. Some filters answer EPERM; if a file does, the walk fails too.
  if (!fd.valid() && (errno == ENOSYS || errno == EPERM)) return Walk(root, inner, flags, mode);
  return fd;
}

Fd OpenRoot(const fs::path& root) {
  return Fd(open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
}

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
  const Fd root_fd = OpenRoot(root);
  if (!root_fd.valid()) return absl::ErrnoToStatus(errno, root.string());
  if ((flags & O_PATH) == 0) flags |= O_NONBLOCK;
  Fd fd = Resolve(root_fd.get(), inner, flags, mode);
  return CheckOpened(std::move(fd), errno, whole);
}

absl::Status CheckOpensBeneath(const std::filesystem::path& file) {
  const absl::StatusOr<Fd> fd = OpenBeneath(file.parent_path(), file.filename(), O_RDONLY);
  if (fd.ok()) return absl::OkStatus();
  return absl::Status(
      fd.status().code(),
      absl::StrCat(fd.status().message(),
                   ": no file can be opened beneath this folder (openat2, "
                   "and openat with O_NOFOLLOW); allow these system calls, or repair the folder"));
}

bool ResolvesBeneath(const std::filesystem::path& root, std::filesystem::path inner) {
  const Fd root_fd = OpenRoot(root);
  while (root_fd.valid()) {
    if (Resolve(root_fd.get(), inner.empty() ? "." : inner, O_PATH, 0).valid()) return true;
    if ((errno != ENOENT && errno != ENOTDIR) || inner.empty()) return false;
    inner = inner.parent_path();
  }
  return false;
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
