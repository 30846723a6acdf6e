#include "common/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "common/durable_folder.h"
#include "common/status.h"

namespace nsa {
namespace {

absl::Status Errno(std::string_view what, const std::filesystem::path& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat(std::string(what), " ", path.string()));
}

absl::Status WriteAll(int fd, std::string_view content, const std::filesystem::path& path) {
  while (!content.empty()) {
    const ssize_t n = write(fd, content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Errno("write", path);
    content.remove_prefix(static_cast<size_t>(n));
  }
  if (fsync(fd) != 0) return Errno("fsync", path);
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteFileAtomically(const std::filesystem::path& path, std::string_view content) {
  const std::filesystem::path temporary = path.string() + ".tmp";
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return Errno("create", temporary);
  absl::Status status = WriteAll(fd, content, temporary);
  close(fd);
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0)
    status = Errno("rename to", path);
  if (!status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  const std::filesystem::path folder = path.parent_path();
  return SyncFolder(folder.empty() ? "." : folder);
}

absl::StatusOr<std::string> ReadWholeFile(const std::filesystem::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Errno("open", path);
  std::string content;
  char buffer[16384];
  ssize_t n = 0;
  while ((n = read(fd, buffer, sizeof buffer)) != 0) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    content.append(buffer, static_cast<size_t>(n));
  }
  const absl::Status status = n < 0 ? Errno("read", path) : absl::OkStatus();
  close(fd);
  if (!status.ok()) return status;
  return content;
}

}  // namespace nsa
