#include "common/run/run_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace nsa {
namespace {

namespace fs = std::filesystem;

absl::Status Errno(const fs::path& path) { return absl::ErrnoToStatus(errno, path.string()); }

absl::StatusOr<Fd> OpenFolder(const fs::path& folder) {
  Fd fd(open(folder.empty() ? "." : folder.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (fd.valid()) return fd;
  if (errno != ENOTDIR && errno != ELOOP) return Errno(folder);
  return absl::FailedPreconditionError(
      absl::StrCat(folder.string(), ": is not a folder (links are not followed); put it back"));
}

absl::StatusOr<FileOwner> OwnerOf(int fd, const fs::path& path) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return Errno(path);
  return FileOwner{.uid = info.st_uid, .gid = info.st_gid};
}

// Opens `path` if it is of the kind `type` (S_IFREG, S_IFSOCK) and its folder's owner owns it.
absl::StatusOr<Fd> OpenOwned(const fs::path& path, int flags, mode_t type) {
  NSA_ASSIGN_OR_RETURN(const Fd folder, OpenFolder(path.parent_path()));
  NSA_ASSIGN_OR_RETURN(const FileOwner owner, OwnerOf(folder.get(), path.parent_path()));
  const auto exchanged = [&path](const std::string& what) {
    return absl::FailedPreconditionError(
        absl::StrCat(path.string(), ": ", what, "; put the worker's own file back"));
  };
  // O_NONBLOCK: the file may be a pipe that nobody writes to.
  Fd fd(openat(folder.get(), path.filename().c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid() && (errno == ELOOP || errno == ENXIO)) {
    return exchanged("is a link or no file (neither is followed)");
  }
  if (!fd.valid()) return Errno(path);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return Errno(path);
  if ((info.st_mode & S_IFMT) != type) return exchanged("is a link or no file (never followed)");
  if (info.st_uid != owner.uid) {
    return exchanged(
        absl::StrCat("belongs to user ", info.st_uid, " (its folder to user ", owner.uid, ")"));
  }
  return fd;
}

}  // namespace

absl::StatusOr<FileOwner> OwnerOfFolder(const fs::path& folder) {
  NSA_ASSIGN_OR_RETURN(const Fd fd, OpenFolder(folder));
  return OwnerOf(fd.get(), folder);
}

absl::StatusOr<Fd> OpenRunFile(const fs::path& path) { return OpenOwned(path, O_RDONLY, S_IFREG); }

absl::StatusOr<Fd> OpenRunSocket(const fs::path& path) { return OpenOwned(path, O_PATH, S_IFSOCK); }

absl::StatusOr<std::string> ReadRunFile(const fs::path& path, size_t longest) {
  NSA_ASSIGN_OR_RETURN(const Fd fd, OpenRunFile(path));
  return ReadBeginning(fd.get(), path, longest);
}

absl::StatusOr<std::string> ReadBeginning(int fd, const fs::path& path, size_t longest) {
  std::string content;
  char buffer[16384];
  while (content.size() < longest) {
    const ssize_t n = read(fd, buffer, std::min(sizeof buffer, longest - content.size()));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Errno(path);
    if (n == 0) break;
    content.append(buffer, static_cast<size_t>(n));
  }
  return content;
}

}  // namespace nsa
