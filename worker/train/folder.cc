#include "worker/train/folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/beneath.h"
#include "common/base/durable_folder.h"
#include "common/base/status.h"
#include "common/run/atomic_file.h"

namespace nsa::train {
namespace {

bool SameFile(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

absl::Status OutOfPlace(const std::filesystem::path& path, std::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat(path.string(), ": no longer the ", absl::string_view(what.data(), what.size()),
                   " that this run writes (what lies there now is left alone); put it back"));
}

}  // namespace

struct Folder::State {
  Fd fd;
  std::filesystem::path path;
  Folder parent;  // invalid for a folder that was opened by its path
};

absl::StatusOr<Folder> Folder::Make(const std::filesystem::path& path) {
  NSA_RETURN_IF_ERROR(MakeDurableFolder(path));
  Fd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, path.string());
  return Folder(std::shared_ptr<const State>(new State{std::move(fd), path, Folder()}));
}

absl::StatusOr<Folder> Folder::MakeFolder(const std::string& name) const {
  if (mkdirat(fd(), name.c_str(), 0777) != 0 && errno != EEXIST) {
    return absl::ErrnoToStatus(errno, (path() / name).string());
  }
  NSA_ASSIGN_OR_RETURN(Fd folder, Open(name, O_RDONLY | O_DIRECTORY));
  return Folder(std::shared_ptr<const State>(new State{std::move(folder), path() / name, *this}));
}

int Folder::fd() const { return state_->fd.get(); }

const std::filesystem::path& Folder::path() const { return state_->path; }

std::filesystem::path Folder::fixed_path() const { return absl::StrCat("/proc/self/fd/", fd()); }

absl::Status Folder::CheckInPlace() const {
  if (state_->parent.valid()) {
    NSA_RETURN_IF_ERROR(state_->parent.CheckInPlace());
    return state_->parent.CheckInPlace(path().filename().string(), fd());
  }
  struct stat held {
  }, there{};
  if (fstat(fd(), &held) != 0) return absl::ErrnoToStatus(errno, path().string());
  const bool same = stat(path().c_str(), &there) == 0 && SameFile(held, there);
  return same ? absl::OkStatus() : OutOfPlace(path(), "folder");
}

absl::Status Folder::CheckInPlace(const std::string& name, int fd) const {
  struct stat held {
  }, there{};
  if (fstat(fd, &held) != 0) return absl::ErrnoToStatus(errno, (path() / name).string());
  const bool same =
      fstatat(this->fd(), name.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 && SameFile(held, there);
  return same ? absl::OkStatus()
              : OutOfPlace(path() / name, S_ISDIR(held.st_mode) ? "folder" : "file");
}

absl::StatusOr<Fd> Folder::Open(const std::string& name, int flags) const {
  return OpenIn(fd(), path() / name, flags, 0644);
}

absl::StatusOr<Fd> Folder::Create(const std::string& name) const {
  if (unlinkat(fd(), name.c_str(), 0) != 0 && errno != ENOENT) {
    return absl::ErrnoToStatus(errno, (path() / name).string());
  }
  return Open(name, O_WRONLY | O_CREAT | O_EXCL);
}

absl::StatusOr<std::string> Folder::Read(const std::string& name) const {
  NSA_ASSIGN_OR_RETURN(const Fd file, Open(name, O_RDONLY));
  return ReadWholeFile(file.get(), path() / name);
}

absl::Status Folder::WriteAtomically(const std::string& name, std::string_view content) const {
  return WriteFileAtomically(fd(), path() / name, content);
}

bool Folder::Has(const std::string& name) const {
  struct stat info {};
  return fstatat(fd(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0;
}

absl::StatusOr<std::vector<std::string>> Folder::Names() const {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator it(fixed_path(), error);
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) return absl::ErrnoToStatus(error.value(), path().string());
  return names;
}

absl::Status Folder::Rename(const std::string& from, const std::string& to) const {
  if (renameat(fd(), from.c_str(), fd(), to.c_str()) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat((path() / to).string(), ": rename"));
}

absl::Status Folder::Publish(const std::string& from, const std::string& to) const {
  int result = renameat2(fd(), from.c_str(), fd(), to.c_str(), RENAME_NOREPLACE);
  if (result != 0 && errno == EEXIST) {
    result = renameat2(fd(), from.c_str(), fd(), to.c_str(), RENAME_EXCHANGE);
  } else if (result != 0 && (errno == EINVAL || errno == ENOSYS)) {
    // The file system does not support these flags. rename() replaces empty folders only, so rename
    // the existing folder first.
    const absl::Status aside = Rename(to, from + "-replaced");
    if (!aside.ok() && !absl::IsNotFound(aside)) return aside;
    NSA_RETURN_IF_ERROR(Rename(from, to));
    return Sync();
  }
  if (result != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat((path() / to).string(), ": rename"));
  }
  return Sync();
}

absl::Status Folder::PointLink(const std::string& name, const std::string& target) const {
  const std::string temporary = name + ".tmp";
  if (unlinkat(fd(), temporary.c_str(), 0) != 0 && errno != ENOENT) {
    return absl::ErrnoToStatus(errno, (path() / temporary).string());
  }
  if (symlinkat(target.c_str(), fd(), temporary.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, (path() / temporary).string());
  }
  NSA_RETURN_IF_ERROR(Rename(temporary, name));
  return Sync();
}

absl::Status Folder::RemoveAll(const std::string& name) const {
  const auto removed = [&](int result) {
    return result == 0 || errno == ENOENT ? absl::OkStatus()
                                          : absl::ErrnoToStatus(errno, (path() / name).string());
  };
  const int result = unlinkat(fd(), name.c_str(), 0);
  if (result == 0 || errno != EISDIR) return removed(result);
  NSA_ASSIGN_OR_RETURN(Fd inner, Open(name, O_RDONLY | O_DIRECTORY));
  const Folder folder(
      std::shared_ptr<const State>(new State{std::move(inner), path() / name, *this}));
  NSA_ASSIGN_OR_RETURN(const std::vector<std::string> names, folder.Names());
  for (const std::string& one : names) NSA_RETURN_IF_ERROR(folder.RemoveAll(one));
  return removed(unlinkat(fd(), name.c_str(), AT_REMOVEDIR));
}

absl::Status Folder::Sync() const {
  if (fsync(fd()) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat(path().string(), ": fsync"));
}

}  // namespace nsa::train
