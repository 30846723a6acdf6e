#include "common/run/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "common/base/fd.h"
#include "common/base/status.h"

namespace nsa {
namespace {

absl::Status Errno(std::string_view what, const std::filesystem::path& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat(std::string(what), " ", path.string()));
}

}  // namespace

bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

absl::Status WriteFileAtomically(int folder, const std::filesystem::path& path,
                                 std::string_view content) {
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

absl::Status WriteFileAtomically(const std::filesystem::path& path, std::string_view content) {
  const std::filesystem::path parent = path.has_parent_path() ? path.parent_path() : ".";
  const Fd folder(open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return Errno("open", parent);
  return WriteFileAtomically(folder.get(), path, content);
}

absl::StatusOr<std::string> ReadWholeFile(int fd, const std::filesystem::path& path) {
  std::string content;
  char buffer[16384];
  ssize_t n = 0;
  while ((n = read(fd, buffer, sizeof buffer)) != 0) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Errno("read", path);
    content.append(buffer, static_cast<size_t>(n));
  }
  return content;
}

absl::StatusOr<std::string> ReadWholeFile(const std::filesystem::path& path) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return Errno("open", path);
  return ReadWholeFile(fd.get(), path);
}

}  // namespace nsa
