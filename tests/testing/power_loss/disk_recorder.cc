// Preloaded into a program, records what it does to the files below $NSA_DISK_FOLDER (an absolute
// path without links). Records are appended to the file $NSA_DISK_LOG, which lies elsewhere, in the
// format of disk_log.h. One lock is held around each call and its record, so that records are in
// the order of the calls.
//
// Not recorded: writes to a mapping, writes of stdio (those of std::ofstream are recorded), and
// calls that are not defined here. The log is therefore compared with the disk: after the program's
// end both must have the same content (power_loss_test.cc).
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string>

#include "tests/testing/power_loss/disk_log.h"

namespace nsa {
namespace {

template <typename Function>
Function Real(Function, const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}
// REAL(write)(fd, data, size) calls the C library's function.
#define REAL(function) (::nsa::Real(&::function, #function))

std::mutex& Lock() {
  static std::mutex mutex;
  return mutex;
}

std::string LinkTarget(const std::string& link) {
  char target[PATH_MAX];
  const ssize_t length = readlink(link.c_str(), target, sizeof(target));
  return length < 0 ? "" : std::string(target, static_cast<size_t>(length));
}

std::string PathOf(int fd) { return LinkTarget("/proc/self/fd/" + std::to_string(fd)); }

std::string PathOf(int folder, const char* path) {
  if (path[0] == '/') return std::filesystem::path(path).lexically_normal();
  const std::string base = folder == AT_FDCWD ? LinkTarget("/proc/self/cwd") : PathOf(folder);
  return (std::filesystem::path(base) / path).lexically_normal();
}

bool Recorded(const std::string& path) {
  static const char* const folder = std::getenv("NSA_DISK_FOLDER");
  return folder != nullptr && path.rfind(std::string(folder) + "/", 0) == 0;
}

// Also true for the folder itself, which may be synced.
bool Recorded(int fd) { return Recorded(PathOf(fd) + "/"); }

// Ends the program when something cannot be recorded: an incomplete log would be useless.
void Must(bool done) {
  if (!done) std::abort();
}

void Append(DiskRecord record, const std::string& path, const std::string& data = "") {
  static const int log = REAL(openat)(AT_FDCWD, std::getenv("NSA_DISK_LOG"),
                                      O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  record.path_bytes = static_cast<uint32_t>(path.size());
  record.data_bytes = data.size();
  std::string bytes(reinterpret_cast<const char*>(&record), sizeof(record));
  bytes += path;
  bytes += data;
  const int error = errno;
  Must(REAL(write)(log, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  errno = error;
}

// Records a file or folder that was just created.
void AppendNew(DiskOp op, const std::string& path, const std::string& data = "") {
  struct stat info {};
  Must(lstat(path.c_str(), &info) == 0);
  Append({.op = op, .inode = info.st_ino}, path, data);
}

void AppendOpen(DiskOp op, int fd, int64_t offset = 0, const std::string& data = "") {
  struct stat info {};
  Must(fstat(fd, &info) == 0);
  Append({.op = op, .inode = info.st_ino, .offset = offset}, "", data);
}

// `open` opens the file and returns the descriptor; `flags` are those of open(2).
template <typename Open>
int Opened(const std::string& path, int flags, const Open& open_it) {
  if ((flags & (O_CREAT | O_TRUNC)) == 0 || !Recorded(path)) return open_it();
  const std::lock_guard<std::mutex> lock(Lock());
  struct stat before {};
  const bool existed = lstat(path.c_str(), &before) == 0;
  const int fd = open_it();
  if (fd < 0) return fd;
  if (!existed) AppendNew(DiskOp::kCreate, path);
  if (existed && (flags & O_TRUNC) != 0) AppendOpen(DiskOp::kTruncate, fd);
  return fd;
}

int OpenAt(int folder, const char* path, int flags, mode_t mode) {
  return Opened(PathOf(folder, path), flags,
                [&] { return REAL(openat)(folder, path, flags, mode); });
}

FILE* OpenStream(const char* path, const char* mode) {
  const int flags = mode[0] == 'w' ? O_CREAT | O_TRUNC : mode[0] == 'a' ? O_CREAT : 0;
  FILE* stream = nullptr;
  Opened(PathOf(AT_FDCWD, path), flags, [&] {
    stream = REAL(fopen)(path, mode);
    return stream == nullptr ? -1 : fileno(stream);
  });
  return stream;
}

// `offset` -1 means the descriptor's current position.
template <typename Write>
ssize_t Written(int fd, int64_t offset, const iovec* parts, int count, const Write& write_it) {
  const bool said = fd == STDOUT_FILENO;
  if (!said && !Recorded(fd)) return write_it();
  const std::lock_guard<std::mutex> lock(Lock());
  if (!said && offset < 0) {
    offset = lseek(fd, 0, (fcntl(fd, F_GETFL) & O_APPEND) != 0 ? SEEK_END : SEEK_CUR);
  }
  const ssize_t written = write_it();
  if (written <= 0) return written;
  std::string data;
  for (int i = 0; i < count; ++i) {
    data.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
  }
  data.resize(static_cast<size_t>(written));
  AppendOpen(said ? DiskOp::kSaid : DiskOp::kWrite, fd, offset, data);
  return written;
}

ssize_t WriteAt(int fd, const void* data, size_t size, int64_t offset) {
  const iovec part = {const_cast<void*>(data), size};
  return Written(fd, offset, &part, 1, [&] {
    return offset < 0 ? REAL(write)(fd, data, size) : REAL(pwrite)(fd, data, size, offset);
  });
}

int Truncate(int fd, off_t size) {
  if (!Recorded(fd)) return REAL(ftruncate)(fd, size);
  const std::lock_guard<std::mutex> lock(Lock());
  const int result = REAL(ftruncate)(fd, size);
  if (result == 0) AppendOpen(DiskOp::kTruncate, fd, size);
  return result;
}

int Sync(int fd, int (*sync)(int)) {
  if (!Recorded(fd)) return sync(fd);
  const std::lock_guard<std::mutex> lock(Lock());
  const int result = sync(fd);
  if (result == 0) AppendOpen(DiskOp::kSync, fd);
  return result;
}

int Rename(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  const std::string old_path = PathOf(from_folder, from), new_path = PathOf(to_folder, to);
  const std::lock_guard<std::mutex> lock(Lock());
  const int result = REAL(renameat2)(from_folder, from, to_folder, to, flags);
  if (result != 0 || (!Recorded(old_path) && !Recorded(new_path))) return result;
  Append({.op = (flags & RENAME_EXCHANGE) != 0 ? DiskOp::kExchange : DiskOp::kRename}, old_path,
         new_path);
  return result;
}

int Unlink(int folder, const char* name, int flags) {
  const std::string path = PathOf(folder, name);
  const std::lock_guard<std::mutex> lock(Lock());
  const int result = REAL(unlinkat)(folder, name, flags);
  if (result == 0 && Recorded(path)) Append({.op = DiskOp::kRemove}, path);
  return result;
}

int MakeDir(int folder, const char* name, mode_t mode) {
  const std::string path = PathOf(folder, name);
  const std::lock_guard<std::mutex> lock(Lock());
  const int result = REAL(mkdirat)(folder, name, mode);
  if (result == 0 && Recorded(path)) AppendNew(DiskOp::kMakeDir, path);
  return result;
}

int Symlink(const char* target, int folder, const char* name) {
  const std::string path = PathOf(folder, name);
  const std::lock_guard<std::mutex> lock(Lock());
  const int result = REAL(symlinkat)(target, folder, name);
  if (result == 0 && Recorded(path)) AppendNew(DiskOp::kSymlink, path, target);
  return result;
}

// The `mode` argument of open() or openat(), if there is one.
#define MODE_OF(last)                         \
  mode_t mode = 0;                            \
  if ((flags & (O_CREAT | O_TMPFILE)) != 0) { \
    va_list list;                             \
    va_start(list, last);                     \
    mode = va_arg(list, mode_t);              \
    va_end(list);                             \
  }

}  // namespace
}  // namespace nsa

// On 64-bit Linux the functions with 64 in their names do the same.
extern "C" {
int open(const char* path, int flags, ...) {
  MODE_OF(flags)
  return nsa::OpenAt(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  MODE_OF(flags)
  return nsa::OpenAt(AT_FDCWD, path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  MODE_OF(flags)
  return nsa::OpenAt(folder, path, flags, mode);
}
int openat64(int folder, const char* path, int flags, ...) {
  MODE_OF(flags)
  return nsa::OpenAt(folder, path, flags, mode);
}
FILE* fopen(const char* path, const char* mode) { return nsa::OpenStream(path, mode); }
FILE* fopen64(const char* path, const char* mode) { return nsa::OpenStream(path, mode); }
ssize_t write(int fd, const void* data, size_t size) { return nsa::WriteAt(fd, data, size, -1); }
ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  return nsa::WriteAt(fd, data, size, offset);
}
ssize_t pwrite64(int fd, const void* data, size_t size, off64_t offset) {
  return nsa::WriteAt(fd, data, size, offset);
}
ssize_t writev(int fd, const iovec* parts, int count) {
  return nsa::Written(fd, -1, parts, count, [&] { return REAL(writev)(fd, parts, count); });
}
int ftruncate(int fd, off_t size) noexcept { return nsa::Truncate(fd, size); }
int ftruncate64(int fd, off64_t size) noexcept { return nsa::Truncate(fd, size); }
int fsync(int fd) { return nsa::Sync(fd, REAL(fsync)); }
int fdatasync(int fd) { return nsa::Sync(fd, REAL(fdatasync)); }
int rename(const char* from, const char* to) noexcept {
  return nsa::Rename(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  return nsa::Rename(from_folder, from, to_folder, to, 0);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned flags) noexcept {
  return nsa::Rename(from_folder, from, to_folder, to, flags);
}
int unlink(const char* path) noexcept { return nsa::Unlink(AT_FDCWD, path, 0); }
int unlinkat(int folder, const char* name, int flags) noexcept {
  return nsa::Unlink(folder, name, flags);
}
int remove(const char* path) noexcept {
  const int result = nsa::Unlink(AT_FDCWD, path, 0);
  return result != 0 && errno == EISDIR ? nsa::Unlink(AT_FDCWD, path, AT_REMOVEDIR) : result;
}
int rmdir(const char* path) noexcept { return nsa::Unlink(AT_FDCWD, path, AT_REMOVEDIR); }
int mkdir(const char* path, mode_t mode) noexcept { return nsa::MakeDir(AT_FDCWD, path, mode); }
int mkdirat(int folder, const char* name, mode_t mode) noexcept {
  return nsa::MakeDir(folder, name, mode);
}
int symlink(const char* target, const char* path) noexcept {
  return nsa::Symlink(target, AT_FDCWD, path);
}
int symlinkat(const char* target, int folder, const char* name) noexcept {
  return nsa::Symlink(target, folder, name);
}
}
