#include "common/run/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/fd.h"
#include "common/base/status.h"
#include "common/base/write.h"

namespace nsa {
namespace {

absl::Status Errno(std::string_view what, const std::filesystem::path& path) {
  return WriteError(errno, absl::StrCat(std::string(what), " ", path.string()));
}

// Gives a file the owner, group and mode of another. The owner first: a change of it may take bits
// of the mode away.
bool MakeAlike(int fd, const struct stat& other) {
  return fchown(fd, other.st_uid, other.st_gid) == 0 && fchmod(fd, other.st_mode & 07777) == 0;
}

// WriteFileAtomically(); with `like`, the new file is alike.
absl::Status Write(int folder, const std::filesystem::path& path, std::string_view content,
                   const struct stat* like) {
  const std::string name = path.filename().string(), temporary = name + ".tmp";
  // Remove whatever is there, perhaps a link that somebody else made, and write a new file.
  if (unlinkat(folder, temporary.c_str(), 0) != 0 && errno != ENOENT) {
    return Errno("remove", path.string() + ".tmp");
  }
  Fd fd(openat(folder, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
               0600));
  if (!fd.valid()) return Errno("create", path.string() + ".tmp");
  absl::Status status;
  if (!WriteAll(fd.get(), content)) {
    status = Errno("write", path);
  } else if (like != nullptr && !MakeAlike(fd.get(), *like)) {
    status = Errno("keep the owner of", path);
  } else if (fsync(fd.get()) != 0) {
    status = Errno("fsync", path);
  }
  fd.Reset();
  if (status.ok() && renameat(folder, temporary.c_str(), folder, name.c_str()) != 0) {
    status = Errno("rename to", path);
  }
  if (!status.ok()) {
    unlinkat(folder, temporary.c_str(), 0);
    return status;
  }
  return fsync(folder) == 0 ? absl::OkStatus() : Errno("fsync", path.parent_path());
}

absl::StatusOr<Fd> OpenFolderOf(const std::filesystem::path& path) {
  const std::filesystem::path parent = path.has_parent_path() ? path.parent_path() : ".";
  Fd folder(open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return Errno("open", parent);
  return folder;
}

constexpr size_t kMostOfPipe = 256 << 20;

absl::StatusOr<std::string> ReadUpTo(size_t most, int fd, const std::filesystem::path& path) {
  std::string content;
  char buffer[16384];
  ssize_t n = 0;
  while ((n = read(fd, buffer, sizeof buffer)) != 0) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Errno("read", path);
    content.append(buffer, static_cast<size_t>(n));
    if (content.size() > most) {
      return absl::InvalidArgumentError(absl::StrCat(
          path.string(), ": more than ", most, " bytes, or without an end; give a smaller text"));
    }
  }
  return content;
}

}  // namespace

absl::Status WriteFileAtomically(int folder, const std::filesystem::path& path,
                                 std::string_view content) {
  return Write(folder, path, content, nullptr);
}

absl::Status WriteFileAtomically(const std::filesystem::path& path, std::string_view content) {
  NSA_ASSIGN_OR_RETURN(const Fd folder, OpenFolderOf(path));
  return Write(folder.get(), path, content, nullptr);
}

absl::Status ReplaceFileAtomically(const std::filesystem::path& path, std::string_view content) {
  NSA_ASSIGN_OR_RETURN(const Fd folder, OpenFolderOf(path));
  struct stat info {};
  if (fstatat(folder.get(), path.filename().c_str(), &info, 0) != 0) return Errno("stat", path);
  return Write(folder.get(), path, content, &info);
}

absl::StatusOr<std::string> ReadWholeFile(int fd, const std::filesystem::path& path) {
  return ReadUpTo(std::numeric_limits<size_t>::max(), fd, path);
}

absl::StatusOr<std::string> ReadWholeFile(const std::filesystem::path& path) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat info {};
  if (!fd.valid() || fstat(fd.get(), &info) != 0) return Errno("open", path);
  if (S_ISREG(info.st_mode)) return ReadWholeFile(fd.get(), path);
  return absl::FailedPreconditionError(
      absl::StrCat(path.string(), ": is not a regular file; move it away, or put the file back"));
}

absl::StatusOr<std::string> ReadWholeFileOrPipe(const std::filesystem::path& path) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!fd.valid() || fstat(fd.get(), &info) != 0) return Errno("open", path);
  if (S_ISREG(info.st_mode)) return ReadWholeFile(fd.get(), path);
  return ReadUpTo(kMostOfPipe, fd.get(), path);
}

}  // namespace nsa
